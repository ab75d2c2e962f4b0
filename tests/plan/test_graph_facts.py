"""Facts of a graph are found once for it and its copies, and again in a graph that was changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import plans
from transforms.graph import walk
from transforms.model.copy_graph import copy_graph
from transforms.plan import exact_arithmetic, graph_facts
from transforms.plan.graph_facts import GraphFacts, KnownFacts

TEXT = """(float[2, 4] x, int64[2] i) => (float[2, 4] y, float[4] s) {
    w = MatMul(x, k)  p = Cast<to = 1>(i)  a = Mul(p, f)  s0 = Sin(a)  c = Cos(a)
    m = Add(w, b)  y = Softmax<axis = -1>(m)  s = Concat<axis = 0>(s0, c) }"""
WEIGHTS: plans.Weights = {
    "k": (4, 4),
    "f": np.array([0.5, 0.25], np.float32),
    "b": np.array([[0] * 4, [-np.inf] * 4], np.float32),
}
NAMES = [name for name, value in vars(GraphFacts).items() if isinstance(value, graph_facts._Fact)]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[gs.Graph]:
    """Return the graphs, as they come, in which exact arithmetic is looked for."""
    looked: list[gs.Graph] = []
    find = exact_arithmetic.exact_arithmetic

    def _find(graph: gs.Graph) -> set[int]:
        looked.append(graph)
        return find(graph)

    monkeypatch.setattr(exact_arithmetic, "exact_arithmetic", _find)
    return looked


def _node(graph: gs.Graph, op: str) -> gs.Node:
    return next(node for node in walk.nodes(graph) if node.op == op)


def test_facts_of_a_copy_are_those_of_its_own_nodes_and_tensors() -> None:
    """The oracle is a graph of which nothing is known."""
    graph, known = plans.graph(TEXT, WEIGHTS), KnownFacts()
    first = {name: getattr(GraphFacts(graph, known), name) for name in NAMES}
    assert first == {name: getattr(GraphFacts(graph), name) for name in NAMES}
    assert first["exact"] and first["meant_infinities"]
    copy = copy_graph(graph)
    assert all(getattr(GraphFacts(copy, known), name) == getattr(GraphFacts(copy), name) for name in NAMES)


def test_a_copy_is_not_looked_at_again(counted: list[gs.Graph]) -> None:
    graph, known = plans.graph(TEXT, WEIGHTS), KnownFacts()
    for one in (graph, graph, copy_graph(graph)):
        assert GraphFacts(one, known).exact and GraphFacts(one, known).zone
    assert counted == [graph]


def _other_attribute(graph: gs.Graph) -> None:
    _node(graph, "Cast").attrs["to"] = 11


def _other_weight(graph: gs.Graph) -> None:
    weight = _node(graph, "MatMul").inputs[1]
    weight.values = weight.values + 1


def _other_input(graph: gs.Graph) -> None:
    _node(graph, "Cos").inputs[0] = _node(graph, "Cast").outputs[0]


def _other_shape(graph: gs.Graph) -> None:
    graph.inputs[0].shape = ["n", 4]


def _other_operator(graph: gs.Graph) -> None:
    _node(graph, "Sin").op = "Relu"


def _one_output_less(graph: gs.Graph) -> None:
    graph.outputs.pop()


@pytest.mark.parametrize(
    "change",
    [_other_attribute, _other_weight, _other_input, _other_shape, _other_operator, _one_output_less],
)
def test_a_changed_graph_is_looked_at_again(
    change: Callable[[gs.Graph], None], counted: list[gs.Graph]
) -> None:
    graph, known = plans.graph(TEXT, WEIGHTS), KnownFacts()
    found = GraphFacts(graph, known).exact
    copy = copy_graph(graph)
    change(copy)
    assert GraphFacts(copy, known).exact == GraphFacts(copy).exact
    assert counted == [graph, copy, copy]
    assert GraphFacts(graph, known).exact == found
    assert len(counted) == 3


def test_large_weights_are_not_kept() -> None:
    graph, known = plans.graph(TEXT, WEIGHTS), KnownFacts()
    values = np.ones((256, 256), np.float32)
    is_there = weakref.ref(values)
    _node(graph, "MatMul").inputs[1].values = values
    assert GraphFacts(graph, known).exact
    _node(graph, "MatMul").inputs[1].values = np.ones((4, 4), np.float32)
    del values
    assert is_there() is None
    assert GraphFacts(graph, known).exact == GraphFacts(graph).exact
