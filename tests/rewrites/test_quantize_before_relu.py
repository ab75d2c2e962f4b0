"""Quantizing in front of a Relu changes no number. Oracle: the same model without, run by ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

from tests.helpers import build
from tests.helpers.real_models import session
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.runtime_workarounds import quantize_before_relu
from transforms.scheme import Scheme, preset

RANDOM = np.random.default_rng(5)


def convolutions(rectifier: str, bounds: tuple[float, float] | None = None) -> gs.Graph:
    """Return two convolutions with a rectifier between them and one behind."""
    weights = {f"w{i}": RANDOM.standard_normal((4, 4, 3, 3)).astype(np.float32) / 4 for i in range(2)}
    extra: list[str] = []
    if bounds is not None:
        weights |= {name: np.array(b, np.float32) for name, b in zip(("low", "high"), bounds, strict=True)}
        extra = ["low", "high"]
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "conv0", pads=[1, 1, 1, 1]),
        node(rectifier, ["a", *extra], ["b"], "rectifier0"),
        node("Conv", ["b", "w1"], ["c"], "conv1", pads=[1, 1, 1, 1]),
        node(rectifier, ["c", *extra], ["y"], "rectifier1"),
    ]
    ends = [build.value(name, [1, 4, 8, 8]) for name in ("x", "y")]
    return graph_proto.import_model(build.model(nodes, ends[:1], ends[1:], weights))


def samples(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": RANDOM.standard_normal((1, 4, 8, 8), dtype=np.float32)} for _ in range(count)]


def quantized(graph: gs.Graph, scheme: Scheme) -> gs.Graph:
    quantize_graph(graph, scheme, CalibrationData(samples(4)))
    return graph


def outputs(graph: gs.Graph, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    opened = session(graph_proto.export_model(graph).SerializeToString())
    return [opened.run(None, feed)[0] for feed in feeds]


@pytest.mark.parametrize("config", ["A8W8", "XINT8", "A16W8", "U8S8"])
@pytest.mark.parametrize(("rectifier", "bounds"), [("Relu", None), ("Clip", (0, 6)), ("Clip", (-0.3, 0.7))])
def test_no_number_changes(rectifier: str, bounds: tuple[float, float] | None, config: str) -> None:
    graph = quantized(convolutions(rectifier, bounds), preset(config).with_(keep_float=False))
    feeds = [{"x": 3 * feed["x"]} for feed in samples(8)]  # beyond the range that was measured, too
    before = outputs(graph, feeds)
    assert quantize_before_relu(graph) == 2
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    assert all(np.array_equal(a, b) for a, b in zip(before, outputs(graph, feeds), strict=True))
    assert np.ptp(before[0]) > 0


def test_bounds_between_two_steps_of_the_grid() -> None:
    """Every number of a fine line, on a grid of step 1/4 whose bounds lie on it, between, and half way."""
    for bounds in [(0.0, 1.0), (0.1, 1.1), (-0.125, 0.875), (-0.37, 0.63)]:
        model = onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 13]>
            g (float[N] x) => (float[N] y) <float zero = {0}, float s = {0.25}, int8 z = {3}> {
            a = Add(x, zero) b = Clip(a, low, high) q = QuantizeLinear(b, s, z)
            y = DequantizeLinear(q, s, z) }"""
        )
        for name, bound in zip(("low", "high"), bounds, strict=True):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(bound, np.float32), name))
        graph = graph_proto.import_model(model)
        feed = [{"x": np.linspace(-2, 2, 4001, dtype=np.float32)}]
        before = outputs(graph, feed)[0]
        assert quantize_before_relu(graph) == 1
        assert np.array_equal(before, outputs(graph, feed)[0])


def test_every_convolution_runs_in_integers(tmp_path: Path) -> None:
    counts = []
    for key in (False, True):
        graph = quantized(
            convolutions("Relu"), preset("A8W8").with_(quantize_before_relu=key, keep_float=False)
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(tmp_path / f"{key}.onnx")
        onnxruntime.InferenceSession(
            graph_proto.export_model(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        optimized = onnx.load(options.optimized_model_filepath)
        counts.append(Counter(node.op_type for node in optimized.graph.node)["QLinearConv"])
    assert counts == [0, 2]


def test_second_run_does_nothing() -> None:
    graph = quantized(convolutions("Relu"), preset("A8W8").with_(keep_float=False))
    assert quantize_before_relu(graph) == 2
    assert quantize_before_relu(graph) == 0


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(x, x) b = Relu(a) q = QuantizeLinear(b, s, z) d = DequantizeLinear(q, s, z) y = Add(d, b)",
        "a = Add(x, x) b = Relu(a) q = QuantizeLinear(b, s, z) d = DequantizeLinear(q, s, z) y = Add(d, a)",
        "a = Tanh(x) b = Relu(a) q = QuantizeLinear(b, s, z) y = DequantizeLinear(q, s, z)",
        "b = Relu(x) q = QuantizeLinear(b, s, z) y = DequantizeLinear(q, s, z)",
        "a = Add(x, x) m = Neg(s) b = Clip(a, m) q = QuantizeLinear(b, s, z) y = DequantizeLinear(q, s, z)",
        "a = Add(x, x) y = Relu(a)",
    ],
)
def test_left_alone(body: str) -> None:
    """Other readers of the Relu or of the layer, other producers, computed bounds, no quantization."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[N] x) => (float[N] y) <float s = {{0.25}}, int8 z = {{0}}> {{ {body} }}"""
    )
    graph = graph_proto.import_model(model)
    count = len(list(walk.nodes(graph)))
    assert quantize_before_relu(graph) == 0
    assert len(list(walk.nodes(graph))) == count
