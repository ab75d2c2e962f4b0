"""Oracle: graphs small enough to be counted by hand."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tests.helpers import corpus
from transforms import model_io
from transforms.graph import walk


def load(name: str) -> gs.Graph:
    return model_io.load(corpus.build(name))


def names(values: list) -> list[str]:
    return [value.name for value in values]


def test_graphs_outer_before_inner() -> None:
    graph = load("nested if")
    assert names(list(walk.graphs(graph))) == ["main", "t", "tt", "te", "e"]
    assert [node.op for node in walk.nodes(graph)] == ["Tanh", "If", "Exp", "If", "Mul", "Add", "Mul", "Neg"]
    assert [len(list(walk.bodies(node))) for node in graph.nodes] == [0, 2]


def test_constants_once_in_order_of_use() -> None:
    assert names(list(walk.constants(load("if")))) == ["w", "v"]
    assert names(list(walk.constants(load("shared weight")))) == ["w"]
    assert names(list(walk.constants(load("weight is output")))) == ["w"]


def test_home_of_a_constant_encloses_all_its_uses() -> None:
    graph = load("nested if")
    (weight,) = walk.constants(graph)
    assert walk.constant_owners(graph)[id(weight)].name == "t", "both inner branches use it"
    graph.nodes[0].inputs[0] = weight
    assert walk.constant_owners(graph)[id(weight)] is graph
    graph = load("if")
    owners = {tensor.name: walk.constant_owners(graph)[id(tensor)].name for tensor in walk.constants(graph)}
    assert owners == {"w": "t", "v": "e"}


def test_uses_redirect_and_replace() -> None:
    graph = load("input twice")
    (a,) = graph.nodes[0].outputs
    assert [(node.op, index) for node, index in walk.uses(a)] == [("Mul", 0), ("Mul", 1)]
    other = gs.Variable("other", np.float32)
    walk.redirect(a, other)
    assert walk.uses(a) == []
    assert [tensor.name for tensor in graph.nodes[1].inputs] == ["other", "other"]
    walk.replace_output(graph.nodes[0], a, other)
    assert (graph.nodes[0].outputs[0] is other, a.inputs) == (True, [])


def test_uses_in_bodies_and_twins_that_look_the_same() -> None:
    graph = load("if of twins")
    (x, _) = graph.inputs
    assert len(walk.uses(x)) == 2
    new = gs.Variable("new", np.float32)
    first, second = (node for body in walk.bodies(graph.nodes[0]) for node in body.nodes)
    second.inputs[0] = new
    walk.redirect(x, new)
    assert first.inputs[0] is second.inputs[0] is new


def test_outputs_of_a_graph_are_not_those_of_its_bodies() -> None:
    graph = load("if")
    branch = next(walk.bodies(graph.nodes[1]))
    (inner,) = branch.nodes[1].outputs
    assert (walk.is_output(inner, branch), walk.is_output(inner, graph)) == (True, False)
    assert walk.is_output(graph.outputs[0], graph)


def test_names_are_unique_in_the_whole_model() -> None:
    taken = walk.Names(load("nested if"))
    assert taken.derive("s", "x") == "s_x"
    assert taken.derive("s", "x") == "s_x_2"
    assert taken.derive("s", "x") == "s_x_3"
    graph = load("if")
    next(walk.bodies(graph.nodes[1])).nodes[0].outputs[0].name = "a_x"
    assert walk.Names(graph).derive("a", "x") == "a_x_2", "an inner name may not be hidden"
    graph.nodes[0].name = "b_x"
    assert walk.Names(graph).derive("b", "x") == "b_x_2", "nodes count too"
    assert taken.derive("", "alone") == "alone"
