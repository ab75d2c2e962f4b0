"""MatMul and Add to Gemm, and back. Oracle: the formula in float64, within the rounding bound of float32."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import conversion, corpus
from transforms import model_io
from transforms.fuse_matmul_add import fuse_matmul_add
from transforms.graph import walk
from transforms.split_gemm import split_gemm

X = np.random.default_rng(0).standard_normal((5, 4), np.float32)
W, B = corpus.WEIGHTS["w0"], corpus.WEIGHTS["b0"]
HEAD = "(float[N, 4] x) => (float[N, 64] y)"
ADDED = "{ p = MatMul(x, w0) y = Add(p, c) }"


def within(result: NDArray, exact: NDArray, terms: int = 5) -> bool:
    """Whether sums of so many terms, in any order, lie within their rounding bound."""
    largest = np.abs(X).max() * np.abs(W).max() * 4 + np.abs(B).max()
    return bool(np.abs(result - exact).max() <= 2 * terms * 2.0**-24 * 3 * largest)


@pytest.mark.parametrize("body", ["p = MatMul(x, w0) y = Add(p, b0)", "p = MatMul(x, w0) y = Add(b0, p)"])
def test_a_bias_on_either_side(body: str) -> None:
    graph = model_io.load(corpus.parse(f"{HEAD} {{ [dense] {body} }}", opset=17))
    count, model = conversion.rewritten(graph, fuse_matmul_add)
    assert (count, [(node.op, node.name) for node in graph.nodes]) == (1, [("Gemm", "dense")])
    assert within(conversion.run(model, {"x": X})["y"], X.astype(np.float64) @ W + B)


@pytest.mark.parametrize("shape", ["", "[1]", "[64]", "[1, 64]", "[1, 1]", "[N, 64]", "[N, 1]"])
def test_biases_that_are_inputs_of_every_shape_that_fits(shape: str) -> None:
    text = f"(float[N, 4] x, float{shape} c) => (float[N, 64] y) {{ p = MatMul(x, w0) y = Add(p, c) }}"
    sizes = [5 if size.strip() == "N" else int(size) for size in shape.strip("[]").split(",") if size]
    bias = np.random.default_rng(1).standard_normal(sizes).astype(np.float32)
    graph = model_io.load(corpus.parse(text, opset=17))
    count, model = conversion.rewritten(graph, fuse_matmul_add)
    assert (count, [node.op for node in graph.nodes]) == (1, ["Gemm"])
    assert within(conversion.run(model, {"x": X, "c": bias})["y"], X.astype(np.float64) @ W + bias, 8)


def test_a_bias_that_is_computed_later_than_the_product() -> None:
    text = f"{HEAD} {{ p = MatMul(x, w0) s = ReduceSum <keepdims = 1> (x) c = Abs(s) y = Add(p, c) }}"
    graph = model_io.load(corpus.parse(text, opset=17))
    count, model = conversion.rewritten(graph, fuse_matmul_add)
    assert (count, [node.op for node in graph.nodes]) == (1, ["ReduceSum", "Abs", "Gemm"])
    exact = X.astype(np.float64) @ W + abs(X.astype(np.float64).sum())
    assert within(conversion.run(model, {"x": X})["y"], exact, 30)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[N, M, 4] x) => (float[N, M, 64] y) { p = MatMul(x, w0) y = Add(p, b0) }", "two axes"),
        (f"{HEAD[:-1]}, float[N, 64] p) {{ p = MatMul(x, w0) y = Add(p, b0) }}", "an output"),
        (f"{HEAD} {{ p = MatMul(x, w0) r = Relu(p) y = Add(p, r) }}", "read by other"),
        (f"(float[1, 4] x, float[N, 64] c) => (float[N, 64] y) {ADDED}", "broadcast"),
        (f"(float[1, 4] x, float[1, N, 64] c) => (float[1, N, 64] y) {ADDED}", "matrix"),
        (f"(int32[N, 4] x, int32[4, 2] w0, int32[2] c) => (int32[N, 2] y) {ADDED}", "type"),
    ],
)
def test_refusals_name_their_reason(text: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    graph = model_io.load(corpus.parse(text, opset=17))
    with caplog.at_level(logging.DEBUG, "transforms.fuse_matmul_add"):
        assert fuse_matmul_add(graph) == 0
    assert reason in caplog.text


def test_chosen_nodes() -> None:
    body = "[one] p = MatMul(x, w0) [two] y = Add(p, b0)"
    for choice in ({"exclude": "one"}, {"exclude": ["two"]}, {"nodes": ["one"]}, {"nodes": ["MatMul"]}):
        assert fuse_matmul_add(model_io.load(corpus.parse(f"{HEAD} {{ {body} }}")), **choice) == 0  # type: ignore[arg-type]
    assert fuse_matmul_add(model_io.load(corpus.parse(f"{HEAD} {{ {body} }}")), nodes=["MatMul", "two"]) == 1


def test_in_bodies_and_back() -> None:
    text = """(float[N, 4] x, bool c) => (float[N, 64] y) {
        y = If (c) <then_branch = t () => (float[N, 64] p) { a = MatMul(x, w0) p = Add(a, b0) },
                    else_branch = e () => (float[N, 64] q) { b = MatMul(x, w0) q = Add(b0, b) }> }"""
    graph = model_io.load(corpus.parse(text, opset=17))
    count, _ = conversion.rewritten(graph, fuse_matmul_add)
    assert (count, [node.op for node in walk.nodes(graph)]) == (2, ["If", "Gemm", "Gemm"])
    count, _ = conversion.rewritten(graph, split_gemm)
    assert (count, [node.op for node in walk.nodes(graph)]) == (2, ["If", "MatMul", "Add", "MatMul", "Add"])
