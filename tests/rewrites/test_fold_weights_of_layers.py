"""Weights of chosen layers. Oracle: which layers read a stored bfloat16 weight, written down in each test."""

from __future__ import annotations

import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.fold_weights import fold_weights
from transforms.graph.selection import Choice
from transforms.insert_cast import insert_cast

NET = """(float[N, 4] x) => (float[N, 2] y) { [one] a = MatMul(x, w0) r = Relu(a) [two] b = MatMul(r, w1)
    [three] c = MatMul(a, w1) y = Add(b, c) }"""


@pytest.mark.parametrize(
    ("nodes", "exclude", "expected"),
    [
        (None, None, {"w0", "w1"}),
        ("one", None, {"w0"}),
        (None, "one", {"w1"}),
        ("two", None, {"w1"}),  # one of its readers is chosen
        (None, "two", {"w0", "w1"}),  # another reader is not left out
        (None, ["two", "three"], {"w0"}),
        (None, lambda node: node.op == "Cast" and node.inputs[0].name == "w0", {"w1"}),
        ("MatMul", "one", {"w1"}),
    ],
)
def test_layers_or_their_casts_choose(
    nodes: Choice | None, exclude: Choice | None, expected: set[str]
) -> None:
    graph = model_io.load(corpus.parse(NET))
    insert_cast(graph)
    assert fold_weights(graph, nodes=nodes, exclude=exclude) == len(expected)
    stored = {t.name for node in graph.nodes for t in node.inputs if str(t.dtype) == "bfloat16"}
    assert stored & {"w0", "w1"} == expected
    assert fold_weights(graph, nodes=nodes, exclude=exclude) == 0
