"""Layers in float between integers. Oracle: the graph that ONNX Runtime makes, and the model before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.runtime_workarounds import is_unchanging, keep_weights_float

PAIR = "{0}q = QuantizeLinear({0}, s, z) {0}d = DequantizeLinear({0}q, s, z)"
DEPTHWISE = "c = Conv<group = 2>(xd, k)"
PLAIN = f"{PAIR.format('x')} {DEPTHWISE} {PAIR.format('c')} y = Identity(cd)"
RECTIFIED = f"{PAIR.format('x')} {DEPTHWISE} r = Relu(c) {PAIR.format('r')} y = Identity(rd)".replace(
    "(r, s, z)", "(r, s, n)"
).replace("(rq, s, z)", "(rq, s, n)")
READ_TWICE = (
    f"{PAIR.format('x')} {DEPTHWISE} g = Sigmoid(c) p = Mul(c, g) {PAIR.format('p')} y = Identity(pd)"
)
OPEN = f"{PAIR.format('x')} {DEPTHWISE} y = Identity(c)"
FLOAT_INPUT = f"c = Conv<group = 2>(x, k) {PAIR.format('c')} y = Identity(cd)"


def model(nodes: str) -> onnx.ModelProto:
    """Return a depthwise layer of a large and a tiny kernel; one scale for both rounds the latter to zero."""
    stored = "<float[2,1,1,1] k = {4, 0.004}, float s = {0.02}, uint8 z = {100}, uint8 n = {0}>"
    return corpus.parse(f"(float[1,2,4,4] x) => (float[1,2,4,4] y) {stored} {{ {nodes} }}", opset=19)


def operators(graph_path: Path) -> list[str]:
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath, settings.log_severity_level = f"{graph_path}.optimized", 4
    onnxruntime.InferenceSession(str(graph_path), settings, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node]


@pytest.mark.parametrize("nodes", (PLAIN, RECTIFIED))
def test_the_runtime_does_not_round_their_weights(nodes: str, tmp_path: Path) -> None:
    graph = model_io.load(model(nodes))
    model_io.save(graph, tmp_path / "before.onnx")
    assert keep_weights_float(graph) == 1 and keep_weights_float(graph) == 0
    model_io.save(graph, tmp_path / "after.onnx")
    assert "QLinearConv" in operators(tmp_path / "before.onnx"), "or the rewrite is of no use any more"
    after = operators(tmp_path / "after.onnx")
    assert "QLinearConv" not in after and "LeakyRelu" not in after, "it is computed along with the layer"
    feed = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)}
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    exact = onnxruntime.InferenceSession(model(nodes).SerializeToString(), settings, providers=providers)
    made = onnxruntime.InferenceSession(str(tmp_path / "after.onnx"), providers=providers)
    np.testing.assert_array_equal(made.run(None, feed)[0], exact.run(None, feed)[0])


@pytest.mark.parametrize("nodes", (READ_TWICE, OPEN, FLOAT_INPUT))
def test_layers_that_the_runtime_leaves_alone_stay(nodes: str) -> None:
    graph = model_io.load(model(nodes))
    assert keep_weights_float(graph) == 0 and not any(map(is_unchanging, graph.nodes))
