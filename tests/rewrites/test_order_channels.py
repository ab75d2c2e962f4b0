"""Channels put in another order. Oracles: ONNX Runtime on the model before; all pairings of few channels."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from ops.pair_sums import LARGEST_PAIR
from tests.helpers import conversion, plans
from transforms import model_io
from transforms.model import graph_proto
from transforms.order_channels import order_channels

MATRICES = """(float[N,3] x) => (float[N,2] y) {
    a = Gemm(x, v, b) r = Relu(a) m = Mul(r, s) y = MatMul(m, w) }"""
"""Two layers, with a bias and a number for each channel between them."""

RESIDUAL = """(float[1,3,6,6] x) => (float[1,2,6,6] y) {
    a = Conv(x, v, b) r = Sigmoid(a) d = Conv <group = 8, pads = [1, 1, 1, 1]> (r, k)
    e = Conv(d, u) f = Add(r, e) p = MaxPool <kernel_shape = [1, 1]> (f) q = PRelu(p, l) y = Conv(q, w) }"""
"""Channels that a sum ties together, behind a depthwise layer, a pool and a slope for each."""

SHAPES: plans.Weights = {
    **{"v": (8, 3, 1, 1), "b": (8,), "k": (8, 1, 3, 3), "u": (8, 8, 1, 1), "l": (8, 1, 1), "w": (2, 8, 1, 1)}
}


def _run(graph: gs.Graph, x: np.ndarray) -> np.ndarray:
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    return conversion.run(model, {"x": x})["y"]


def _matrices(channels: int = 6, seed: int = 0) -> gs.Graph:
    draw = np.random.default_rng(seed)
    shapes = {"v": (3, channels), "b": (channels,), "s": (channels,), "w": (channels, 2)}
    return plans.graph(
        MATRICES, {name: draw.normal(size=shape).astype("f") for name, shape in shapes.items()}
    )


def _cost(weight: np.ndarray) -> float:
    """Return the cost of a matrix [channels, outputs] by its definition."""
    limits = 1.2 * LARGEST_PAIR * np.abs(weight).max(0) / 127
    return float(np.square(np.maximum(np.abs(weight[::2] + weight[1::2]) - limits, 0)).sum())


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_the_best_of_few_channels(seed: int) -> None:
    graph = _matrices(seed=seed)
    weight = graph.tensors()["w"].values
    costs = [_cost(weight[list(order)]) for order in permutations(range(6))]
    before = _cost(weight)
    changed = order_channels(graph)
    after = _cost(graph.tensors()["w"].values)
    assert bool(changed) == (after < before)
    # six channels have 15 pairings, each an exchange or two from any other; 10 % are not worth a change
    assert after <= min(costs) / 0.9


@pytest.mark.parametrize("name", ["matrices", "residual"])
def test_the_model_computes_the_same(name: str) -> None:
    graph = _matrices(16) if name == "matrices" else plans.graph(RESIDUAL, SHAPES)
    draw = np.random.default_rng(1)
    x = draw.normal(size=(1, 3) if name == "matrices" else (1, 3, 6, 6)).astype(np.float32)
    weights = {str(t.name): t.values.copy() for t in graph.tensors().values() if isinstance(t, gs.Constant)}
    before = _run(graph, x)
    assert order_channels(graph) == 1
    assert any(not np.array_equal(graph.tensors()[one].values, old) for one, old in weights.items())
    np.testing.assert_allclose(_run(graph, x), before, rtol=1e-5, atol=1e-6)  # sums in another order
    ordered = {name: graph.tensors()[name].values.copy() for name in weights}
    assert order_channels(graph) == 0
    assert all(np.array_equal(graph.tensors()[one].values, values) for one, values in ordered.items())


def test_many_channels_change_places_with_their_neighbours() -> None:
    """Oracle: each part has the rows that it had; what is computed, and the cost by its definition."""
    graph, x = _matrices(2500), np.random.default_rng(1).normal(size=(1, 3)).astype(np.float32)
    weight, before = graph.tensors()["w"].values.copy(), _run(graph, x)
    assert order_channels(graph) == 1
    ordered = graph.tensors()["w"].values
    for part in (slice(0, 1024), slice(1024, 2048), slice(2048, 2500)):
        assert sorted(map(tuple, ordered[part])) == sorted(map(tuple, weight[part]))
    np.testing.assert_allclose(_run(graph, x), before, rtol=1e-4, atol=1e-4)
    assert _cost(ordered) < 0.5 * _cost(weight)


LEFT = {
    "an output of the model": """(float[N,3] x) => (float[N,2] y, float[N,8] r) {
        a = MatMul(x, v) r = Relu(a) y = MatMul(r, w) }""",
    "an operator between channels": """(float[N,3] x) => (float[N,2] y) {
        a = MatMul(x, v) r = Softmax(a) y = MatMul(r, w) }""",
    "a weight that is read twice": """(float[N,3] x, float[N,8] z) => (float[N,2] y, float[N,2] t) {
        a = MatMul(x, v) r = Relu(a) y = MatMul(r, w) t = MatMul(z, w) }""",
    "rows of images": """(float[1,1,4,3] x) => (float[1,1,4,2] y) {
        a = MatMul(x, v) r = GlobalAveragePool(a) s = Add(a, r) y = MatMul(s, w) }""",
    "an input": "(float[N,8] x) => (float[N,2] y) { r = Relu(x) y = MatMul(r, w) }",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_channels_that_must_stay(text: str) -> None:
    draw = np.random.default_rng(2)
    weights: plans.Weights = {
        "v": draw.normal(size=(3, 8)).astype("f"),
        "w": draw.normal(size=(8, 2)).astype("f"),
    }
    graph = plans.loose_graph(text, {name: weights[name] for name in weights if f" {name})" in text})
    assert order_channels(graph) == 0


def test_a_constant_in_the_place_of_data_keeps_its_order() -> None:
    """Nothing makes its channels, so that nothing would permute them with those of the weight."""
    text = "(float[1,2] x) => (float[3,2] y) { a = MatMul(v, w) y = Add(a, x) }"
    graph = plans.graph(text, {"v": (3, 16), "w": (16, 2)})
    x = np.ones((1, 2), np.float32)
    before = _run(graph, x)
    assert order_channels(graph) == 0
    assert np.array_equal(_run(graph, x), before)


def test_nodes_that_are_left_out_keep_the_order() -> None:
    graph = _matrices(16)
    assert order_channels(graph, exclude=["*"]) == 0


def test_bodies_hold_what_they_read() -> None:
    model = plans.model(
        """(float[1,3] x, bool c) => (float[1,2] y) {
        a = MatMul(x, v) r = Relu(a) h = MatMul(r, w)
        y = If <then_branch = t () => (float[1,2] p) { p = MatMul(r, w2) },
                else_branch = e () => (float[1,2] q) { q = Identity(h) }> (c) }""",
        {"v": (3, 8), "w": (8, 2), "w2": (8, 2)},
    )
    assert order_channels(model_io.load(model)) == 0
