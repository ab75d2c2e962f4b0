"""Integers that bodies read after they were moved. Oracle: ONNX Runtime, without its optimization before."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph import walk
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.runtime_workarounds import requantize_captured
from transforms.scheme.sources import preset

BODIES = """y = If (c) <then_branch = left () => (float[M] p) { p = Abs(t) },
        else_branch = right () => (float[M] n) { n = Neg(t) }>"""
MOVED = {
    "slice": "t = Slice(d, a, b)",
    "reshape": "t = Reshape(d, r)",
    "twice": "v = Transpose<perm = [0]>(d) t = Slice(v, a, b)",
}


def _model(move: str, after: str = BODIES) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 17]> g (float[4] x, bool c)
        => (float[N] y) <float s = {{0.1}}, uint8 z = {{3}}, int64[1] a = {{0}}, int64[1] b = {{2}},
        int64[1] r = {{4}}> {{
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {move} {after} }}""")


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray], *, optimize: bool) -> np.ndarray:
    options = ort.SessionOptions()
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


@pytest.mark.parametrize("move", MOVED)
def test_the_same_bits_in_a_form_that_the_runtime_opens(move: str) -> None:
    """Version 1.32.0 aborts on these models; that would end the tests, too."""
    model = _model(MOVED[move])
    graph = graph_proto.import_model(model)
    assert requantize_captured(graph) == 1
    assert requantize_captured(graph) == 0
    made = graph_proto.export_model(graph)
    onnx.checker.check_model(made, full_check=True)
    for taken in (True, False):
        feed = {"x": np.array([-1.0, 0.26, 30.0, 0.05], np.float32), "c": np.array(taken)}
        assert np.array_equal(_run(made, feed, optimize=True), _run(model, feed, optimize=False))


@pytest.mark.parametrize(
    ("move", "after"),
    [("t = Abs(d)", BODIES), ("t = Identity(d)", BODIES), ("t = Reshape(d, r)", "y = Relu(t)")],
)
def test_others_stay(move: str, after: str) -> None:
    assert requantize_captured(graph_proto.import_model(_model(move, after))) == 0


@pytest.mark.parametrize("config", ("A8W8", "U8S8", "A16W8"))
def test_quantizing_writes_that_form(config: str) -> None:
    """All operators of integers; the sessions that choose settings open the model before it has that form."""
    text = f"""(float[1,4] x, bool c) => (float[K,M] y, float[2,2] u) <int64[2] r = {{2, 2}},
        float[2,2] w = {{0.5, 1.0, -0.5, 1.0}}> {{ h = HardSwish(x) t = Reshape(h, r) u = MatMul(t, w)
        {BODIES.replace("float[M]", "float[K,M]")} }}"""
    model = corpus.parse(text, opset=17)
    random = np.random.default_rng(0)
    feeds = [
        {"x": random.standard_normal((1, 4)).astype(np.float32), "c": np.array(i % 2 == 0)} for i in range(4)
    ]
    graph = model_io.load(model)
    scheme = preset(config).with_(quantize_all_op_types=True, keep_float=False)
    quantize_graph(graph, scheme, CalibrationData(feeds))
    moved = next(node for node in walk.nodes(graph) if node.op == "Reshape")
    assert [reader.op for reader in moved.outputs[0].outputs] == ["QuantizeLinear"]
    made = graph_proto.export_model(graph)
    for feed in feeds:
        found, expected = _run(made, feed, optimize=True), _run(model, feed, optimize=True)
        assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max(), "a few steps of 1/127"
