"""Oracles: the float model in ONNX Runtime without graph optimizations, whose outputs stay the same bit for
bit with powers of two (they commute with rounding, barring underflow and overflow); products in float64 for
channels with products of their own, which order the sums anew.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.helpers import conversion, plans
from transforms import model_io
from transforms.graph.selection import select
from transforms.model import graph_proto
from transforms.move_outliers import move_outliers
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset
from transforms.scheme.outlier_move import OutlierMove, parse_move

Weights = dict[str, NDArray[np.float32]]

SHAPES: plans.Weights = {"w": (4, 5), "v": (4, 3), "t": (5, 4), "b": (5,), "o": (4,), "q": (4, 4)}
SHAPES["s"] = np.float32([30, 1, 2, 0.7])
FRONT = "(float[2,3,4] x) => (float[2,3,5] y) { h = Softplus(x) y = MatMul(h, w) }"
NORM = "(float[2,3,4] x) => (float[2,3,5] y) { h = LayerNormalization<axis = -1>(x, s, o) y = MatMul(h, w) }"
TWO = """(float[2,3,4] x) => (float[2,3,5] y, float[2,3,3] z) {
    h = LayerNormalization<axis = -1>(x, s, o) y = MatMul(h, w) z = MatMul(h, v) }"""
SEEN = """(float[2,3,4] x) => (float[2,3,5] y, float[2,3,4] h) {
    h = LayerNormalization<axis = -1>(x, s, o) y = MatMul(h, w) }"""
RESIDUAL = """(float[2,3,4] x) => (float[2,3,5] y, float[2,3,4] z) {
    h = LayerNormalization<axis = -1>(x, s, o) y = MatMul(h, w) z = Add(h, x) }"""
SCALED = "(float[2,3,4] x) => (float[2,3,5] y) { u = Softplus(x) h = Mul(s, u) y = MatMul(h, w) }"
GEMM = """(float[6,4] x) => (float[6,5] y) {
    h = Softplus(x) y = Gemm<transB = 1, alpha = 0.5>(h, t, b) }"""
SHARED = """(float[2,3,4] x) => (float[2,3,5] y, float[2,3,5] z) {
    h = Softplus(x) g = Sigmoid(x) y = MatMul(h, w) z = MatMul(g, w) }"""
EVEN = OutlierMove({0: 3, 2: -1})
OWN = OutlierMove({2: 1}, (0, 3))


def make(text: str) -> onnx.ModelProto:
    """Return a model with random weights; the first channel of ``s`` is 30 times the others."""
    return plans.model(text, SHAPES)


def feeds(source: onnx.ModelProto) -> Weights:
    """Return a random feed."""
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(3).standard_normal(shape).astype(np.float32)}


def moved(source: onnx.ModelProto, moves: dict[str, OutlierMove], count: int = 1) -> onnx.ModelProto:
    """Move outliers twice; only the first run changes anything. Return the model, which the checker takes."""
    found, changed = conversion.rewritten(model_io.load(source), lambda graph: move_outliers(graph, moves))
    assert found == count
    return changed


def operators(model: onnx.ModelProto) -> list[str]:
    """Return the operators of the nodes in order."""
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FRONT, "Softplus Mul MatMul"),
        (NORM, "LayerNormalization MatMul"),
        (TWO, "LayerNormalization MatMul MatMul"),
        (SEEN, "LayerNormalization Mul MatMul"),
        (RESIDUAL, "LayerNormalization Mul MatMul Add"),
        (SCALED, "Softplus Mul MatMul"),
        (GEMM, "Softplus Mul Gemm"),
        (SHARED, "Softplus Sigmoid Mul MatMul MatMul"),
    ],
)
def test_powers_of_two_leave_every_bit(text: str, expected: str) -> None:
    source = make(text)
    changed = moved(source, {"h": EVEN})
    assert sorted(operators(changed)) == sorted(expected.split())
    before, after = (conversion.run(model, feeds(source)) for model in (source, changed))
    assert conversion.same(before, after)
    assert all(value.any() for value in before.values())


@pytest.mark.parametrize("text", [FRONT, NORM, TWO, RESIDUAL, SCALED])
def test_weights_take_over_what_the_tensor_loses(text: str) -> None:
    source = make(text)
    before = {t.name: onnx.numpy_helper.to_array(t) for t in source.graph.initializer}
    after = {t.name: onnx.numpy_helper.to_array(t) for t in moved(source, {"h": EVEN}).graph.initializer}
    assert np.array_equal(after["w"], before["w"] * np.float32([[8], [1], [0.5], [1]]))
    if text in (NORM, TWO):
        assert np.array_equal(after["s_moved"], before["s"] / np.float32([8, 1, 0.5, 1]))
        assert np.array_equal(after["o_moved"], before["o"] / np.float32([8, 1, 0.5, 1]))


def test_own_channels_get_a_product_of_their_own() -> None:
    source = make(FRONT)
    changed = moved(source, {"h": OWN})
    assert operators(changed) == ["Softplus", "Mul", "Gather", "MatMul", "MatMul", "Add"]
    after = {t.name: onnx.numpy_helper.to_array(t) for t in changed.graph.initializer}
    assert np.array_equal(after["h_move"], [0, 1, 0.5, 0])
    assert np.array_equal(after["h_own_channels"], [0, 3])
    assert not after["w"][[0, 3]].any()
    feed = feeds(source)
    h = np.log1p(np.exp(feed["x"].astype(np.float64)))
    w = onnx.numpy_helper.to_array(source.graph.initializer[0]).astype(np.float64)
    assert np.allclose(conversion.run(changed, feed)["y"], h @ w, rtol=1e-5, atol=1e-5)


def test_the_product_of_outliers_stays_float_and_the_rest_becomes_integers() -> None:
    text = """(float[2,3,4] x) => (float[2,3,5] y) {
        h = Softplus(x) m = MatMul(h, w) n = Add(m, b) y = LayerNormalization<axis = -1>(n, e) }"""
    graph = model_io.load(plans.model(text, {**SHAPES, "e": (5,)}))
    assert move_outliers(graph, {"h": OutlierMove(own=(3,))}) == 1
    plan = QuantizationPlan(graph, preset("A8W8"))
    assert {site.tensor.name for site in plan.quantizations} == {"h_moved", "w"}


def test_a_gather_of_other_channels_is_no_product_of_outliers() -> None:
    """A model's own pick of channels, beside a Mul that keeps them, computes in integers as before."""
    text = """(float[2,3,4] x) => (float[2,3,5] y) {
        h = Softplus(x) m = Mul(h, s) i = Gather<axis = -1>(h, index) a = MatMul(m, w) c = MatMul(i, k)
        y = Add(a, c) }"""
    made = plans.model(text, {**SHAPES, "k": (1, 5), "index": np.int64([2])})
    plan = QuantizationPlan(model_io.load(made), preset("A8W8"))
    assert "k" in {site.tensor.name for site in plan.quantizations}


def test_a_weight_of_two_layers_is_copied() -> None:
    changed = moved(make(SHARED), {"h": EVEN})
    products = [node for node in changed.graph.node if node.op_type == "MatMul"]
    assert sorted(node.input[1] for node in products) == ["w", "w_moved"]


@pytest.mark.parametrize(
    ("text", "name", "move"),
    [
        (FRONT, "x", EVEN),  # an input of the model
        (FRONT, "absent", EVEN),
        ("(float[4,3] x) => (float[3,5] y) { h = Softplus(x) y = Gemm<transA = 1>(h, w) }", "h", EVEN),
        ("(float[2,4,5] x) => (float[2,4,5] y) { h = Softplus(x) y = MatMul(q, h) }", "h", EVEN),
        ("(float[2,4,4] x) => (float[2,4,4] y) { h = Softplus(x) y = MatMul(h, x) }", "h", EVEN),
        (GEMM, "h", OWN),  # alpha
    ],
)
def test_what_cannot_be_moved_stays(text: str, name: str, move: OutlierMove) -> None:
    graph = model_io.load(make(text))
    before = graph_proto.export_model(graph)
    assert move_outliers(graph, {name: move}) == 0
    assert graph_proto.export_model(graph) == before


def test_the_mean_of_a_normalization_is_not_its_result() -> None:
    text = """(float[2,3,4] x) => (float[2,3,5] y, float[2,3,4] z) {
        z, h = LayerNormalization<axis = -1>(x, s, o) y = MatMul(h, u) }"""
    source = plans.model(text, {**SHAPES, "u": (1, 5)})
    changed = moved(source, {"h": OutlierMove({0: 2})})
    assert operators(changed) == ["LayerNormalization", "Mul", "MatMul"]
    before, after = (conversion.run(model, feeds(source)) for model in (source, changed))
    assert conversion.same(before, after)


def test_excluded_nodes_stay() -> None:
    graph = model_io.load(make(FRONT))
    assert move_outliers(graph, {"h": EVEN}, exclude=select(graph, op_types=["MatMul"])) == 0


def test_a_channel_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"channel 4 of 'h' is out of range: it has 4 channels"):
        move_outliers(model_io.load(make(FRONT)), {"h": OutlierMove(own=(4,))})


def test_moves_before_one_that_is_refused_are_complete() -> None:
    source = make(SHARED)
    graph = model_io.load(source)
    with pytest.raises(ValueError, match="channel 4 of 'g'"):
        move_outliers(graph, {"h": EVEN, "g": OutlierMove({4: 1})})
    changed = graph_proto.export_model(graph)
    before, after = (conversion.run(model, feeds(source)) for model in (source, changed))
    assert conversion.same(before, after)
    assert "Mul" in operators(changed)


def test_a_move_is_read_as_it_is_written() -> None:
    text = "0:own 2:1 3:-7 308:own"
    move = parse_move(text)
    assert move == OutlierMove({2: 1, 3: -7}, (0, 308))
    assert str(move) == text
    assert move.of_channels("h", 309).nonzero()[0].tolist() == [2, 3]


@pytest.mark.parametrize("text", ["", "3", "3:", "3:x", "3:1,4:2", "3:1 3:own", "-1:2", "1:61", "1:own x"])
def test_a_text_that_says_no_move_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a list of|above 60"):
        parse_move(text)
