"""Oracle: what NumPy finds in the tensors themselves."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.helpers import build, corpus
from transforms.model import graph_proto
from transforms.run.instrumented_model import PROBES, InstrumentedModel, float_outputs

EXTREMES = ("low", "high", "sum", "nan", "inf")


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_probes_and_arrays(opset: int) -> None:
    graph = graph_proto.import_model(build.dense(layers=2, opset=opset))
    x = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    arrays = InstrumentedModel(graph, ["x", "matmul0_out", "y"]).run({"x": x})
    probes = [(name, probe) for name in ("x", "matmul0_out") for probe in EXTREMES]
    found = InstrumentedModel(graph, [*probes, "y"]).run({"x": x})
    for name in ("x", "matmul0_out"):
        a = arrays[name]
        wanted = [a.min(), a.max(), a.sum(), 0, 0]
        assert [found[name, probe] for probe in EXTREMES] == pytest.approx(wanted, rel=1e-5)
    assert found["y"].shape == (5, 16) and arrays["x"] is x and found.keys() == {*probes, "y"}


def test_empty_tensors_have_the_range_of_no_numbers() -> None:
    """Calibration relies on it."""
    graph = graph_proto.import_model(corpus.build("relu only"))
    found = InstrumentedModel(graph, [("x", "low"), ("y", "high")]).run({"x": np.zeros(0, np.float32)})
    assert (found["x", "low"], found["y", "high"]) == (np.inf, -np.inf)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 8, 16])
def test_numbers_that_are_not_finite_are_told(value: float, place: int) -> None:
    graph = graph_proto.import_model(corpus.build("relu only"))
    model = InstrumentedModel(graph, [("x", probe) for probe in EXTREMES])
    x = np.ones(17, np.float32)
    assert np.isfinite(list(model.run({"x": x}).values())).all()
    x[place] = value
    found = model.run({"x": x})
    assert not np.isfinite(found["x", "sum"])
    assert (found["x", "nan"], found["x", "inf"]) == (np.isnan(value), np.isinf(value))


def test_names_of_the_model_are_never_taken() -> None:
    model = corpus.parse("(float[N] x) => (float[N] x_low, float[N] x_sum) { x_low = Neg(x) x_sum = Exp(x) }")
    probes = [(name, end) for name in ("x", "x_low") for end in ("low", "high")]
    found = InstrumentedModel(graph_proto.import_model(model), probes).run({"x": np.float32([1, 2])})
    assert [found[one] for one in probes] == [1, 2, -2, -1]


def test_probes_stand_directly_after_their_tensor() -> None:
    """So that a large tensor is let go of before the next is made."""
    graph = graph_proto.import_model(build.dense(layers=3))
    shown = [(name, end) for name in ("x", "matmul0_out") for end in ("low", "high")]
    order: list[str] = []

    def _open(light: onnx.ModelProto, *others: object, **named: object) -> None:
        order.extend(node.op_type for node in light.graph.node)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transforms.run.instrumented_model.open_light", _open)
        InstrumentedModel(graph, shown)
    assert order[:2] == ["ReduceMin", "ReduceMax"]
    assert order[order.index("MatMul") + 1 :][:2] == ["ReduceMin", "ReduceMax"]


def test_inputs_constants_and_outputs_as_arrays() -> None:
    """Constants and bfloat16 tensors, which NumPy does not have, too."""
    model = corpus.parse(
        "(float[N,2] x) => (float[N,2] y) <float[2,2] w = {0, 1, 2, 3}>"
        "{ low = Cast<to = 16>(x) y = Cast<to = 1>(low) z = MatMul(y, w) }"
    )
    w = np.arange(4, dtype=np.float32).reshape(2, 2)
    shown = InstrumentedModel(graph_proto.import_model(model), ["x", "low", "w", "z"])
    x = np.float32([[1 / 3, 3]])
    found = shown.run({"x": x})
    low = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert found["x"] is x and np.array_equal(found["w"], w)
    assert found["low"].dtype == np.float32 and np.array_equal(found["low"], low)
    assert np.array_equal(found["z"], low @ w)
    assert shown.run({"x": x}, ["w", "low"]).keys() == {"w", "low"}
    assert {*shown.types().values()} == {"tensor(float)"}


def test_every_probe_is_one_number_or_float32() -> None:
    graph = graph_proto.import_model(build.dense())
    found = InstrumentedModel(graph, [("y", probe) for probe in PROBES]).run(
        {"x": np.ones((5, 16), np.float32)}
    )
    assert {array.shape for (_, probe), array in found.items() if probe != "float32"} == {()}


def test_outputs_that_matter_for_nan() -> None:
    names = {name: float_outputs(graph_proto.import_model(corpus.build(name))) for name in corpus.MODELS}
    assert names["integers"] == ["y"] and names["half output"] == ["z"] and names["weight is output"] == ["y"]


@pytest.mark.parametrize("shown", ["scores", "mixed", "y"])
@pytest.mark.parametrize("watched", [[], ["scores"]], ids=["shown", "watched"])
def test_outputs_whose_type_the_runtime_does_not_infer(shown: str, watched: list[str]) -> None:
    """It infers none of the scores of MultiHeadAttention, whether they stay an output or not."""
    text = """<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
        main (float[1,3,8] x) => (float[1,3,8] y, float[1,2,3,3] scores) {
        mixed, , , scores = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x) y = Neg(mixed) }"""
    model = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((1, 3, 8)).astype(np.float32)
    y, scores = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    seen: dict[str, np.ndarray] = {}
    opened = InstrumentedModel(graph_proto.import_model(model), [shown], watched=watched)
    found = opened.run({"x": x}, see=lambda name, array: seen.setdefault(name, array.copy()))
    assert np.array_equal(found[shown], {"scores": scores, "mixed": -y, "y": y}[shown])
    assert all(np.array_equal(seen[name], scores) for name in watched)
