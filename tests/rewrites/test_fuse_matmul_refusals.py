"""Products that share an input and stay as they are, each for a reason of its own."""

from __future__ import annotations

import logging

import pytest

from tests.helpers import fusion
from tests.helpers.shared_input_products import PAIR, PAIR_TYPES, WEIGHTS
from transforms.fuse_matmul import fuse_matmul

ONE, TWO = "float[?,?,4] q", "float[?,?,4] q, float[?,?,4] k"
FLAT = "float[B,4] q, float[B,4] k"
APART = {
    "a single one": ("q = MatMul(x, wq)", "float[B,T,8] x", ONE),
    "weights that are inputs": ("q = MatMul(x, w) k = MatMul(x, w)", "float[B,T,8] x, float[8,4] w", TWO),
    "computed weights": ("r = Relu(wq) q = MatMul(x, r) k = MatMul(x, r)", "float[B,T,8] x", TWO),
    "different inputs": ("y = Relu(x) q = MatMul(x, wq) k = MatMul(y, wk)", "float[B,T,8] x", TWO),
    "weights on the left": ("q = MatMul(square, x) k = MatMul(square, x)", "float[B,8,4] x", TWO),
    "batched weights": ("q = MatMul(x, batched) k = MatMul(x, batched)", "float[B,T,8] x", TWO),
    "no columns": ("q = MatMul(x, none) k = MatMul(x, none)", "float[B,8] x", "float[B,0] q, float[B,0] k"),
    "different operators": ("q = MatMul(x, wq) k = Gemm(x, wk)", "float[B,8] x", FLAT),
    "different attributes": ("q = Gemm(x, wq) k = Gemm<alpha=2.0>(x, wk)", "float[B,8] x", FLAT),
    "different transposition": (
        "q = Gemm(x, square) k = Gemm<transB=1>(x, square)",
        "float[B,8] x",
        "float[B,8] q, float[B,8] k",
    ),
    "a Gemm with a matrix": ("q = Gemm(x, wq, matrix) k = Gemm(x, wk)", "float[5,8] x", FLAT),
}


@pytest.mark.parametrize("case", APART)
def test_does_nothing(case: str) -> None:
    body, inputs, outputs = APART[case]
    graph = fusion.load(fusion.parse(body, WEIGHTS, inputs=inputs, outputs=outputs))
    before = [node.op for node in graph.nodes]
    assert fuse_matmul(graph) == 0
    assert [node.op for node in graph.nodes] == before


def test_weight_that_an_input_overrides_is_not_constant() -> None:
    graph = fusion.load(fusion.parse(PAIR, WEIGHTS, **PAIR_TYPES))
    graph.inputs.append(graph.nodes[0].inputs[1])
    assert fuse_matmul(graph) == 0


def test_an_old_opset_is_refused_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    graph = fusion.load(fusion.parse(PAIR, WEIGHTS, opset=12, **PAIR_TYPES))
    with caplog.at_level(logging.DEBUG, "transforms.fuse_matmul"):
        assert fuse_matmul(graph) == 0
    assert "needs opset 13, the graph has 12" in caplog.text
