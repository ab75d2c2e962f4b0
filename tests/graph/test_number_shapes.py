"""Oracle: ONNX Runtime, which runs the models on two nearly equal inputs, and what the operators are for."""

from __future__ import annotations

import pytest
from onnx import parser

from transforms.graph import walk
from transforms.graph.number_shapes import NumberShapes, in_words, judged_tensors
from transforms.graph.typed import Graph
from transforms.model import graph_proto

_INITS = (
    "float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}, float half = {0.5}, int64 zero = {0}, int64 one = {1},"
    " int64[1] z1 = {0}, int64[1] o1 = {1}, int64[2] flat = {-1, 2}, bool yes = {1}, int64[1] five = {5}"
)


def _graph(body: str, outputs: str = "float[N,M] y", *, inputs: str = "float[A,4] x") -> Graph:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) <{_INITS}> {{ {body} }}'
    return graph_proto.import_model(parser.parse_model(text))


DEPENDING = {
    "NonZero": "h = MatMul(x, w) n = NonZero(h) y = Cast <to=1>(n)",
    "Compress": "h = MatMul(x, w) g0 = Greater(h, half) g = Gather <axis=1>(g0, zero) "
    "y = Compress <axis=0>(h, g)",
    "Unique": "h = MatMul(x, w) u = Unique(h) y = Reshape(u, flat)",
    "TopK": "h = MatMul(x, w) m = ReduceMax <keepdims=1, axes=[0,1]>(h) r = Reshape(m, o1)"
    " k = Cast <to=7>(r) y, i = TopK <axis=1>(h, k)",
    "Range": "h = MatMul(x, w) m = ReduceMax <keepdims=0>(h) k = Cast <to=7>(m) r = Range(zero, k, one)"
    " y = Gather(h, r)",
    "Slice": "h = MatMul(x, w) m = ReduceMax <keepdims=0>(h) k = Cast <to=7>(m) e = Reshape(k, o1)"
    " y = Slice(h, z1, e)",
    "the numbers of a length": "h = MatMul(x, w) n = NonZero(h) s = Shape(n) c = ConstantOfShape(s)"
    " y = Identity(c)",
    "a layer behind": "h = MatMul(x, w) g0 = Greater(h, half) g = Gather <axis=1>(g0, zero)"
    " r = Compress <axis=0>(h, g) y = MatMul(r, w)",
    "If": "h = MatMul(x, w) m = ReduceMax <keepdims=0>(h) c = Greater(m, half) y = If (c) <then_branch = t ()"
    " => (float[P,Q] a) { a = Identity(h) }, else_branch = e () => (float[R,S] b) { b = Slice(h, z1, o1) }>",
    "Loop": "h = MatMul(x, w) m = ReduceMax <keepdims=0>(h) k = Cast <to=7>(m) y = Loop (k, yes) <body = b"
    " (int64 i, bool c) => (bool d, float[4] s) { d = Identity(c) s = Gather(h, zero) }>",
    "a Sequence": "h = MatMul(x, w) g0 = Greater(h, half) g = Gather <axis=1>(g0, zero)"
    " r = Compress <axis=0>(h, g) q = SplitToSequence <axis=0>(r) y = ConcatFromSequence <axis=0>(q)",
}

INDEPENDENT = {
    "lengths alone": "h = MatMul(x, w) s = Shape(h) f = Cast <to=1>(s) d = Mul(f, half) k = Cast <to=7>(d)"
    " y = Slice(h, z1, o1) n = ConstantOfShape(k)",
    "positions by NonZero": "h = MatMul(x, w) s = Shape(h) o = ConstantOfShape <value = int64[1] {1}>(s)"
    " n = NonZero(o) y = Cast <to=1>(n)",
    "inputs as they are fed": "g = Greater(x, half) n = NonZero(g) c = Cast <to=1>(n) y = Identity(c)",
    "a length that a Scan hands out": "h = MatMul(x, w) n = Scan <num_scan_inputs = 1, body = b"
    " (float[4] r) => (int64[1] c) { c = Identity(o1) }>(h) l = Gather(n, zero) y = Slice(h, z1, l)",
    "a mask": "h = MatMul(x, w) g = Greater(h, half) y = Where(g, h, half)",
}


@pytest.mark.parametrize("body", DEPENDING.values(), ids=DEPENDING.keys())
def test_numbers_decide_how_many_rows_there_are(body: str) -> None:
    graph = _graph(body)
    assert "y" in NumberShapes(graph).names and "h" not in NumberShapes(graph).names
    assert {"h"} <= set(judged_tensors(graph)["y"]) <= {"h", "m", "r"}


@pytest.mark.parametrize("body", INDEPENDENT.values(), ids=INDEPENDENT.keys())
def test_numbers_do_not_decide(body: str) -> None:
    graph = _graph(body)
    assert not NumberShapes(graph).names
    assert judged_tensors(graph) == {"y": ["y"]} and not in_words(judged_tensors(graph))


def test_boxes_are_judged_before_they_are_chosen() -> None:
    graph = _graph(
        "b = Abs(x) a = MatMul(x, w) t = Transpose <perm=[1,0]>(a) s = Unsqueeze(t, z1) u = Unsqueeze(b, z1)"
        " sel = NonMaxSuppression(u, s, five) i = Gather <axis=1>(sel, zero) y = Gather <axis=1>(u, i)",
        "float[A,B,C] y, int64[D,E] sel",
    )
    assert judged_tensors(graph) == {"y": ["s", "u"], "sel": ["s", "u"]}
    known = set(walk.tensors(graph)) - {"s", "u"}  # names that the other model does not have
    assert judged_tensors(graph, known) == {"y": ["b", "t"], "sel": ["b", "t"]}
    assert in_words(judged_tensors(graph))[0] == (
        "The numbers decide how many rows output 'y' has: 's', 'u' before it are compared instead"
    )


def test_what_is_declared_is_not_believed() -> None:
    """An exporter writes the shape of one example."""
    graph = _graph(DEPENDING["a layer behind"], "float[3,4] y")
    assert judged_tensors(graph) == {"y": ["h"]}


def test_what_a_body_alone_computes_is_not_compared() -> None:
    graph = _graph(
        "y = Loop (one, yes) <body = b (int64 i, bool c) => (bool d, float[A2,B2] s) { d = Identity(c)"
        " v = MatMul(x, w) n = NonZero(v) s = Cast <to=1>(n) }>",
        "float[P,A1,B1] y",
    )
    assert judged_tensors(graph) == {"y": []}
    assert in_words(judged_tensors(graph)) == [
        "The numbers decide how many rows output 'y' has: it is not compared"
    ]
