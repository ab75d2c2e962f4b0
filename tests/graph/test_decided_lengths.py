"""Lengths that layers decide. Oracle: what is written down for each graph, and whether rounding the layers
that are not kept changes a length in ONNX Runtime (:mod:`tests.pipelines.test_lengths_of_outputs`)."""

from __future__ import annotations

import onnx_graphsurgeon as gs
import pytest

from tests.helpers import plans
from transforms.graph.number_shapes import NumberShapes, judged_tensors

WEIGHTS: plans.Weights = {"w": (4, 4), "v": (4, 1), "u": (4, 4), "table": (8, 4)}
NUMBER = "h = MatMul (x, w) d = MatMul (h, v) s = ReduceSum <keepdims=0> (d) k = Cast <to=7> (s)"
AS_SHAPE = "r = Reshape (k, one) shape = Concat <axis=0> (r, four)"


def _graph(body: str) -> gs.Graph:
    constants = (
        "int64[1] one = {1}, int64[1] four = {4}, int64[1] z1 = {0}, int64 zero = {0}, int64 step = {1},"
        " bool yes = {1}"
    )
    return plans.loose_graph(f"(float[A,4] x) => (float[N,4] y) <{constants}> {{ {body} }}", WEIGHTS)


def _shapes(body: str) -> NumberShapes:
    return NumberShapes(_graph(body))


GOES_ON = {
    "Range": f"{NUMBER} i = Range (zero, k, step) f = Cast <to=1> (i) c = Unsqueeze (f, one)"
    " e = Expand (c, four) y = MatMul (e, u)",
    "Expand": f"{NUMBER} {AS_SHAPE} m = ReduceMean <keepdims=1> (h) e = Expand (m, shape) y = MatMul (e, u)",
    "Tile": f"{NUMBER} r = Reshape (k, one) t = Concat <axis=0> (r, one) e = Tile (h, t) y = MatMul (e, u)",
    "Slice": f"{NUMBER} r = Reshape (k, one) e = Slice (h, z1, r) t = Tanh (e) y = MatMul (t, u)",
    "ConstantOfShape": f"{NUMBER} {AS_SHAPE} e = ConstantOfShape (shape) y = MatMul (e, u)",
    "a Loop": NUMBER + " e = Loop (k, yes) <body = b (int64 i, bool c) => (bool o, float[4] q)"
    " { o = Identity (c) q = Gather (h, zero) }> y = MatMul (e, u)",
}


@pytest.mark.parametrize("body", GOES_ON.values(), ids=GOES_ON.keys())
def test_layers_before_a_length_with_which_layers_go_on(body: str) -> None:
    shapes = _shapes(body)
    made = {node.outputs[0].name for node in shapes.decided.nodes.values()}
    assert {"h", "d", "s", "k"} <= made and not {"e", "y"} & made
    assert not shapes.names, "the same in both models"


LEFT = {
    "no layer goes on": f"{NUMBER} r = Reshape (k, one) y = Slice (h, z1, r)",
    "rows are found": "h = MatMul (x, w) n = NonZero (h) t = Transpose (n) i = Gather <axis=1> (t, zero)"
    " g = Gather (h, i) y = MatMul (g, u)",
    "the number of those that are found": "h = MatMul (x, w) n = NonZero (h) s = Shape (n)"
    " l = Gather (s, one) c = Concat <axis=0> (l, four) e = ConstantOfShape (c) y = MatMul (e, u)",
}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT.keys())
def test_what_a_whole_model_decides_keeps_no_layer(body: str) -> None:
    shapes = _shapes(body)
    assert not shapes.decided.nodes and "y" in shapes.names


def test_lengths_alone_are_not_decided_by_numbers() -> None:
    shapes = _shapes("h = MatMul (x, w) s = Shape (h) e = ConstantOfShape (s) y = MatMul (e, u)")
    assert not shapes.decided.nodes and not shapes.names


def test_found_rows_are_told_from_another_length() -> None:
    cut, found = (LEFT[name] for name in ("no layer goes on", "rows are found"))
    assert not _is_found(cut, "y") and _is_found(found, "g")
    assert judged_tensors(_graph(cut)) == {"y": ["h", "s"]}


def _is_found(body: str, name: str) -> bool:
    graph = _graph(body)
    (tensor,) = (one for node in graph.nodes for one in node.outputs if one.name == name)
    shapes = NumberShapes(graph)
    assert shapes.is_shaped(tensor)
    return shapes.is_found(tensor)
