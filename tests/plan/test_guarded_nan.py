"""NaN on samples. Oracle: the float model in ONNX Runtime, whose outputs have none."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray

from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.record import Record
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.sampled_exceptions import guarded_nan
from transforms.precision.mixed_model import MixedModel
from transforms.run.run_model import open_model
from transforms.scheme import preset

RANDOM = np.random.default_rng(8)

MEAN = """a = MatMul(x, w) r = Relu(a) c = Cast <to = 1> (k) z = Mul(r, c)
    s = ReduceSum <keepdims = 0> (z, axis) n = ReduceSum <keepdims = 0> (c, axis) d = Div(s, n) """
GUARDED = {
    "IsNaN": MEAN + "g = IsNaN(d) e = Where(g, zero, d) y = Gemm(e, w2)",
    "IsNaN behind a layer": MEAN + "e = Gemm(d, w2) g = IsNaN(e) y = Where(g, zero, e)",
    "a comparison with itself": MEAN + "e = Gemm(d, w2) g = Equal(e, e) y = Where(g, e, zero)",
    "IsNaN behind a move": MEAN + "e0 = Reshape(d, rows) e = Gemm(e0, w2) g = IsNaN(e) y = Where(g, zero, e)",
}
UNSEEN = {
    "a count": MEAN + "g = Greater(n, zero) e = Where(g, d, zero) y = Gemm(e, w2)",
    "rows that are cut off": MEAN + "e = Gemm(d, w2) y = Slice(e, first, end)",
}


def model(text: str) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["": 17]> main (float[2,6,16] x, bool[2,6,1] k) => (float[A,B] y)'
    made = onnx.parser.parse_model(f"{head} {{ {text} }}")
    constants = {
        "w": RANDOM.standard_normal((16, 12)).astype(np.float32),
        "w2": RANDOM.standard_normal((12, 5)).astype(np.float32),
        "zero": np.float32(0),
        "axis": np.int64([1]),
        "rows": np.int64([-1, 12]),
        "first": np.int64([1]),
        "end": np.int64([9]),
    }
    for name, array in constants.items():
        if any(name in node.input for node in made.graph.node):
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


def feeds() -> list[dict[str, NDArray]]:
    """Return samples; the first row of each second one has no token."""
    kept = [np.array([[0, 5][i % 2], 4])[:, None, None] for i in range(4)]
    x = [RANDOM.standard_normal((2, 6, 16)).astype(np.float32) for _ in kept]
    return [{"x": one, "k": np.arange(6)[None, :, None] < count} for one, count in zip(x, kept, strict=True)]


def decibels(text: str, config: str) -> tuple[float, Record]:
    source, samples = model(text), feeds()
    graph = model_io.load(source)
    done = quantize_graph(graph, preset(config).by_rule(), CalibrationData(samples))
    wanted, found = (open_model(one) for one in (model_io.load(source), graph))
    pairs = [(wanted.run(feed)["y"], found.run(feed)["y"]) for feed in samples]
    error = sum(np.square(a - b, dtype=np.float64).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a, dtype=np.float64).sum() for a, _ in pairs) / error)), done


@pytest.mark.parametrize("config", ("A8W8", "U8S8", "XINT8"))
@pytest.mark.parametrize("case", sorted(GUARDED))
def test_what_a_model_looks_for_is_there(case: str, config: str) -> None:
    result, done = decibels(GUARDED[case], config)
    assert result > 25
    kept = any(note.startswith("Kept in float for NaN that the model looks for") for note in done.notes)
    assert kept == (case != "IsNaN"), "no layer is between there"
    assert done.scheme is not None and all(fmt == "float32" for fmt in done.scheme.tensors.values())


@pytest.mark.parametrize("case", sorted(UNSEEN))
def test_what_no_output_sees_is_quantized(case: str) -> None:
    result, done = decibels(UNSEEN[case], "A8W8")
    assert result > 25 and done.scheme is not None and not done.scheme.tensors


def test_the_way_to_a_guard() -> None:
    for text, found in ((GUARDED["IsNaN behind a layer"], ["d"]), (UNSEEN["rows that are cut off"], [])):
        graph = model_io.load(model(text))
        scheme = preset("A8W8").by_rule()
        plan = QuantizationPlan(graph, scheme)
        assert guarded_nan(plan, {"d", "k"}) == found
        assert guarded_nan(plan, set()) == []


def test_mixed_precision_keeps_it_in_every_mix() -> None:
    source, samples = model(GUARDED["IsNaN behind a layer"]), feeds()
    mixed = MixedModel(model_io.load(source), preset("S16S8_MIXED_S8S8"))
    mixed.measure(CalibrationData(samples), [{}])
    assert mixed.scheme.tensors == {"d": "float32"}
    wanted, found = (open_model(one) for one in (model_io.load(source), mixed.build({}).graph))
    for feed in samples:
        y = wanted.run(feed)["y"]
        np.testing.assert_array_less(np.abs(found.run(feed)["y"] - y), 0.02 * np.abs(y).max())
