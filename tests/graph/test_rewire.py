"""Replacing nodes: by identity, with what is dead taken away and what is used left."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tests.helpers import fusion
from transforms.graph import walk
from transforms.graph.rewire import (
    Insertions,
    Replacements,
    detach,
    position,
    release,
    remove_unused,
    take_over,
)


def chain(body: str, outputs: str = "float[N] y") -> gs.Graph:
    weights = {"w": np.ones(3, np.float32)}
    return fusion.load(fusion.parse(body, weights, inputs="float[N] x, bool c", outputs=outputs))


def test_equal_nodes_are_told_apart() -> None:
    x = gs.Variable("x")
    first, twin = (gs.Node("Relu", "", {}, [x], [gs.Variable("a")]) for _ in range(2))
    graph = gs.Graph([first, gs.Node("Neg", "", {}, [first.outputs[0]]), twin], [x])
    assert first == twin
    assert (position(graph, first), position(graph, twin)) == (0, 2)
    detach(twin)
    assert [node is first for node in x.outputs] == [True]
    assert not twin.inputs and not twin.outputs


def test_new_node_takes_name_and_place_and_dead_producers_go() -> None:
    graph = chain("a = Relu(x) b = Abs(a) y = Neg(b) z = Exp(y)", "float[N] z")
    y = graph.nodes[2].outputs[0]
    node = gs.Node("Sin", "new", {}, [graph.inputs[0]])
    fused = Replacements(graph)
    fused.replace([take_over(node, y)], [node])
    fused.place()
    assert [(node.op, node.outputs[0].name) for node in graph.nodes] == [("Sin", "y"), ("Exp", "z")]
    assert y.inputs == [node]
    assert fusion.run(fusion.export(graph), x=np.zeros(2, np.float32), c=np.array(True))[0].tolist() == [1, 1]


def test_outputs_and_captured_tensors_keep_their_producers() -> None:
    body = "a = Relu(x) b = Abs(x) d = Neg(x) y = If(c)<then_branch = t () => (float[N] e) { e = Neg(b) }, "
    graph = chain(body + "else_branch = f () => (float[N] g) { g = Exp(x) }>", "float[N] a, float[N] y")
    remove_unused(graph, graph.nodes[:3])
    assert [node.op for node in graph.nodes] == ["Relu", "Abs", "If"]


def test_arrays_are_released_only_where_nobody_uses_them() -> None:
    graph = chain("a = Add(x, w) y = Neg(a)")
    weight = graph.nodes[0].inputs[1]
    release([weight], walk.outputs(graph))
    assert weight.values.shape == (3,)
    detach(graph.nodes[0])
    graph.outputs.append(weight)
    release([weight], walk.outputs(graph))
    assert weight.values.shape == (3,)
    graph.outputs.pop()
    release([weight], walk.outputs(graph))
    assert weight.values.size == 0


def test_insertions_keep_the_order_of_what_was_there() -> None:
    graph = chain("a = Tanh(x) y = Exp(a)")
    tanh, exp = graph.nodes
    new = [gs.Node("Identity", f"new{i}") for i in range(4)]
    insertions = Insertions()
    for producer, nodes in ((exp, new[3:]), (None, new[:1]), (tanh, new[2:3]), (None, new[1:2])):
        insertions.add(graph, producer, nodes)
    other = gs.Node("Sinh", "other")
    insertions.place(graph, lambda node: other if node is exp else node)
    expected = [new[0], new[1], tanh, new[2], other, new[3]]
    assert [id(one) for one in graph.nodes] == [id(one) for one in expected]
