"""Oracle: the float model in ONNX Runtime without graph optimizations, whose outputs stay the same bit for
bit with powers of two; up to float32 rounding for a HardSwish, which is written as a product.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import conversion, plans
from transforms import model_io
from transforms.channels.scale_channels import scale_channels
from transforms.model import graph_proto
from transforms.scheme.outlier_move import OutlierMove, parse_move

SHAPES: plans.Weights = {
    "f": (4, 3, 3, 3),
    "g": (4,),
    "d": (4, 1, 3, 3),
    "p": (5, 4, 1, 1),
    "t": (4, 2, 2, 2),
}
SHAPES |= {"m": (4, 6), "a": (4, 1, 1), "r": (36, 3)}
ENDS = "(float[2,3,6,6] x) => (float[n,c,h,w] y)"
RELU = f"{ENDS} {{ c = Conv(x, f, g) h = Relu(c) y = Conv(h, p) }}"
POOL = f"{ENDS} {{ c = Conv(x, f, g) k = LeakyRelu(c) h = MaxPool<kernel_shape=[2,2]>(k) y = Conv(h, p) }}"
SUM = f"{ENDS} {{ c = Conv(x, f) h = Add(c, a) y = Conv(h, p) }}"
DEPTHWISE = f"{ENDS} {{ c = Conv(x, f, g) h = Relu(c) y = Conv<group=4>(h, d) }}"
TWO = """(float[2,3,6,6] x) => (float[n,c,h,w] y, float[n,e,v,u] z) {
    c = Conv(x, f, g) h = Relu(c) y = Conv(h, p) z = Conv<group=4>(h, d) }"""
TURNED = f"{ENDS} {{ c = Conv(x, f, g) h = Relu(c) y = ConvTranspose(h, t) }}"
FLAT = """(float[2,3,5,5] x) => (float[2,3] y) {
    c = Conv(x, f, g) h0 = Relu(c) h = Flatten(h0) y = MatMul(h, r) }"""
SILU = f"{ENDS} {{ c = Conv(x, f, g) s = Sigmoid(c) h = Mul(c, s) y = Conv(h, p) }}"
GATED = f"{ENDS} {{ c = Conv(x, f, g) s = HardSigmoid(c) h = Mul(s, c) y = Conv<group=4>(h, d) }}"
SWISH = f"{ENDS} {{ c = Conv(x, f, g) h = HardSwish(c) y = Conv(h, p) }}"
SEEN = """(float[2,3,6,6] x) => (float[n,c,h,w] y, float[n,e,v,u] h) {
    c = Conv(x, f, g) h = Relu(c) y = Conv(h, p) }"""
READ = """(float[2,3,6,6] x) => (float[n,c,h,w] y, float[n,e,v,u] z) {
    c = Conv(x, f, g) h = Relu(c) y = Conv(h, p) z = Tanh(h) }"""
BOUND = f"{ENDS} {{ c = Conv(x, f, g) h = Tanh(c) y = Conv(h, p) }}"
GATE_SEEN = """(float[2,3,6,6] x) => (float[n,c,h,w] y, float[n,e,v,u] s) {
    c = Conv(x, f, g) s = Sigmoid(c) h = Mul(c, s) y = Conv(h, p) }"""
MOVE = OutlierMove({0: 3, 2: -4})


def make(text: str) -> onnx.ModelProto:
    """Return a model with random weights."""
    return plans.model(text, {name: shape for name, shape in SHAPES.items() if name in text})


def scaled(source: onnx.ModelProto, moves: dict[str, OutlierMove], count: int = 1) -> onnx.ModelProto:
    """Scale channels twice; only the first run changes anything. Return the model, which is checked."""
    found, changed = conversion.rewritten(model_io.load(source), lambda graph: scale_channels(graph, moves))
    assert found == count
    return changed


def outputs(model: onnx.ModelProto, source: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return the outputs for a random feed."""
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    feed = {"x": np.random.default_rng(3).standard_normal(shape).astype(np.float32)}
    return conversion.run(model, feed)


@pytest.mark.parametrize("text", [RELU, POOL, SUM, DEPTHWISE, TWO, TURNED, FLAT, SILU, GATED])
def test_powers_of_two_leave_every_bit(text: str) -> None:
    source = make(text)
    changed = scaled(source, {"h": MOVE})
    before, after = outputs(source, source), outputs(changed, source)
    assert conversion.same(before, after)
    assert all(value.any() for value in before.values())
    assert [node.op_type for node in changed.graph.node].count("Mul") == 2 * (text in (SILU, GATED))
    weights = [
        {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        for model in (source, changed)
    ]
    factors = np.float32([1 / 8, 1, 16, 1]).reshape(4, 1, 1, 1)
    assert np.array_equal(weights[1]["f"], weights[0]["f"] * factors)
    names = {name for node in changed.graph.node for name in node.output}
    assert "h" not in names
    assert "h_moved" in names


def test_a_hardswish_becomes_a_product() -> None:
    source = make(SWISH)
    changed = scaled(source, {"h": MOVE})
    assert [node.op_type for node in changed.graph.node] == ["Conv", "Mul", "HardSigmoid", "Mul", "Conv"]
    before, after = outputs(source, source)["y"], outputs(changed, source)["y"]
    assert np.allclose(before, after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", [SEEN, READ, BOUND, GATE_SEEN])
def test_what_others_see_is_left_alone(text: str) -> None:
    """Outputs, other readers, and functions that do not commute with a factor."""
    source = make(text)
    graph = model_io.load(source)
    before = graph_proto.export_model(graph)
    assert scale_channels(graph, {"h": MOVE}) == 0
    assert graph_proto.export_model(graph) == before


def test_what_is_named_is_checked() -> None:
    source = make(RELU)
    graph = model_io.load(source)
    assert scale_channels(graph, {"nothing": MOVE, "x": MOVE}) == 0
    assert scale_channels(graph, {"h": parse_move("1:own")}) == 0
    with pytest.raises(ValueError, match=r"channel 4 of 'h' is out of range: it has 4 channels"):
        scale_channels(graph, {"h": OutlierMove({4: 1})})
