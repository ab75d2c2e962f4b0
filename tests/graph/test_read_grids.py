"""Grids of tensors. Oracle: the formula of DequantizeLinear in NumPy, and what was written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import conversion, corpus, quantization
from transforms import model_io
from transforms.graph.grids import Grid, read_grids
from transforms.insert_qdq import insert_qdq
from transforms.model import graph_proto

NET = """(float[N, 4] x) => (float[N, 2] y) { a = MatMul(x, w0) r = Relu(a) y = Gemm(r, w1, b1) }"""
X = np.random.default_rng(1).standard_normal((6, 4), np.float32)
W0, W1, B1 = (corpus.WEIGHTS[name] for name in ("w0", "w1", "b1"))
COLUMNS = np.abs(W0).max(0) / np.float32(127)


def test_numbers_of_a_grid() -> None:
    grid = Grid("int8", 0.5, 3)
    assert grid.bounds == (-65.5, 62.0)
    assert grid.quantize(np.float32([0.7, 100])).tolist() == [4, 127]
    assert grid.dequantize(np.int8([4, -128])).tolist() == [0.5, -65.5]
    assert grid == Grid("int8", np.float32(0.5), [3][0]) != Grid("int8", 0.5, 2) != Grid("uint8", 0.5, 3)
    assert Grid("int8", -0.5).bounds == (-63.5, 64.0)


def test_grids_along_an_axis_and_of_blocks() -> None:
    along = Grid("int8", [0.5, 2.0], [0, 1], axis=1)
    assert along.dequantize(np.int8([[2, 2]])).tolist() == [[1.0, 2.0]] and along.bounds is None
    blocks = Grid("int4", [[1.0, 2.0]], axis=1, block_size=2)
    assert blocks.dequantize(blocks.quantize(np.float32([[1, 2, 4]]))).tolist() == [[1, 2, 4]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("int9", 1.0), "dtype 'int9' is unknown"),
        (("bfloat16", 1.0), "dtype 'bfloat16' is unknown"),
        (("int8", np.nan), "a scale of int8 is not finite"),
        (("uint8", 1.0, -1), "zero point -1 is beyond uint8, 0 to 255"),
        (("int8", [1.0, 2.0]), "2 scales need the axis"),
    ],
)
def test_grids_that_are_none(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Grid(*arguments)


GRIDS = {
    "x": Grid("uint8", 0.04, 128),
    "w0": Grid("int8", COLUMNS, axis=1),
    "r": Grid("int8", 0.05, -128),
    "y": Grid("int8", 0.02, 5),
}


def test_grids_are_written_computed_and_read_back() -> None:
    graph = model_io.load(corpus.parse(NET))
    count, model = conversion.rewritten(graph, lambda one: insert_qdq(one, GRIDS))
    assert count == 4 and read_grids(graph) == GRIDS
    assert read_grids(model_io.load(model)) == GRIDS
    on_grid = quantization.on_grid
    x = on_grid(X, 0.04, "uint8", 128)
    hidden = on_grid(np.maximum(x @ on_grid(W0, COLUMNS), 0), 0.05, zero_point=-128)
    expected = on_grid(hidden @ W1 + B1, 0.02, zero_point=5)
    found = conversion.run(model, {"x": X})["y"]
    assert np.abs(found - expected).max() <= 0.02 * 1.01  # a sum in another order may round to a neighbour


def test_several_readers_share_the_nodes_and_a_body_captures_them() -> None:
    text = """(float[N, 4] x, bool c) => (float[N, 4] y) { a = Neg(x) b = Exp(a)
        p = If (c) <then_branch = f () => (float[N, 4] k) { k = Abs(a) },
                    else_branch = g () => (float[N, 4] m) { m = Neg(a) }> y = Add(p, b) }"""
    graph = model_io.load(corpus.parse(text))
    assert insert_qdq(graph, {"a": Grid("int8", 0.1)}) == 1
    model = graph_proto.export_model(graph)
    assert [node.op for node in graph.nodes].count("QuantizeLinear") == 1
    rounded = quantization.on_grid(-X, 0.1)
    found = conversion.run(model, {"x": X, "c": np.array(True)})["y"]
    np.testing.assert_allclose(found, np.abs(rounded) + np.exp(rounded), rtol=1e-6)


@pytest.mark.parametrize(
    ("grids", "words"),
    [
        ({"z": Grid("int8", 1.0)}, "no tensor is named 'z'"),
        ({"w0": Grid("int8", [1.0, 2.0], axis=1)}, r"tensor 'w0' needs scales of shape \[64\], not \[2\]"),
        ({"x": Grid("int8", [1.0, 2.0], axis=2)}, "axis 2 is out of range for tensor 'x' of rank 2"),
        ({"x": Grid("int4", 1.0)}, "the grids need opset 21, the model has 18: raise it first"),
    ],
)
def test_grids_that_do_not_fit_change_nothing(grids: dict[str, Grid], words: str) -> None:
    graph = model_io.load(corpus.parse(NET))
    before = graph_proto.export_model(graph).SerializeToString(deterministic=True)
    with pytest.raises(ValueError, match=words):
        insert_qdq(graph, {"y": Grid("int8", 1.0), **grids})
    assert graph_proto.export_model(graph).SerializeToString(deterministic=True) == before


def test_a_tensor_of_integers_has_no_grid() -> None:
    graph = model_io.load(corpus.parse("(int64[N] x) => (int64[N] y) { y = Abs(x) }"))
    with pytest.raises(ValueError, match="tensor 'x' cannot be put on a grid: it is not float32"):
        insert_qdq(graph, {"x": Grid("int8", 1.0)})


def test_a_tensor_of_integers_after_others_changes_nothing() -> None:
    text = "(float[N] x, int64[N] k) => (float[N] y, int64[N] z) { y = Abs(x) z = Abs(k) }"
    graph = model_io.load(corpus.parse(text))
    before = graph_proto.export_model(graph).SerializeToString(deterministic=True)
    with pytest.raises(ValueError, match="tensor 'k' cannot be put on a grid"):
        insert_qdq(graph, {"y": Grid("int8", 1.0), "k": Grid("int8", 1.0)})
    assert graph_proto.export_model(graph).SerializeToString(deterministic=True) == before


def test_grids_of_what_a_scheme_writes() -> None:
    """Oracle: the ranges given, 8 to each side, in 255 steps of int8."""
    names = ("x", "c", "r", "p", "f", "y")
    model = quantization.write(
        quantization.NET, quantization.SHAPES, quantization.scheme("A8W8"), dict.fromkeys(names, (-8.0, 8.0))
    )
    grids = read_grids(model_io.load(model))
    assert {"x", "r", "y"} <= grids.keys()
    assert grids["x"].dtype == "int8" and grids["x"].scale == pytest.approx(16 / 255, rel=0.02)
    assert {grid.dtype for grid in grids.values()} == {"int8", "int32"}
