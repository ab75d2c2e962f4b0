"""Nodes chosen at every run. Oracle: the operators themselves, in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from tests.helpers import build, conversion, corpus
from transforms.graph import dtypes, walk
from transforms.graph.if_nodes import Branch, add_switch, choose, copied
from transforms.model import graph_proto


def test_a_switch_says_which_of_two_nodes_is_computed() -> None:
    graph = graph_proto.import_model(
        corpus.parse("(float[n] x, bool part_on) => (float[n] y) { y = Neg (x) }")
    )
    (node,), (y,), names = graph.nodes, graph.outputs, walk.Names(graph)
    switch = add_switch(graph, "part", names)
    assert [tensor.name for tensor in graph.inputs] == ["x", "part_on", switch.name]
    assert switch.name not in ("x", "part_on") and switch.dtype == np.bool_ and list(switch.shape) == []
    made = [dtypes.variable(names.derive("y", suffix), dtypes.FLOAT, y) for suffix in ("abs", "neg")]
    node.outputs.clear()
    on = Branch([gs.Node("Abs", "abs", {}, [graph.inputs[0]], made[:1])], made[:1])
    off = Branch([copied(node, "neg", node.inputs, made[1:])], made[1:])
    node.inputs.clear()
    graph.nodes = [choose(graph, "choice", switch, on, off, [y])]
    x = np.array([1.5, -2.0], np.float32)
    for flag, expected in ((True, [1.5, 2.0]), (False, [-1.5, 2.0])):
        feeds = {"x": x, "part_on": np.array(not flag), switch.name: np.array(flag)}
        assert conversion.run(graph_proto.export_model(graph), feeds)["y"].tolist() == expected


def test_a_copy_has_the_attributes_that_are_carried_beside_a_node() -> None:
    empty = helper.make_node("Constant", [], ["y"])
    empty.attribute.append(helper.make_attribute("value_ints", [], attr_type=onnx.AttributeProto.INTS))
    graph = graph_proto.import_model(build.model([empty], [], [build.value("y", ["n"], np.int64)]))
    (node,) = graph.nodes
    copy = copied(node, "copy", [], [gs.Variable("z", np.int64, ["n"])])
    graph.nodes, graph.outputs = [copy], list(copy.outputs)
    assert conversion.run(graph_proto.export_model(graph), {})["z"].shape == (0,)
