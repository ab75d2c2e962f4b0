"""Oracle: the attribute that the Constant node held."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.helpers import build, conversion, corpus
from transforms import model_io
from transforms.graph import walk
from transforms.lift_constants import lift_constants
from transforms.model import detached_weights, graph_proto

BIG = np.arange(detached_weights.LARGE, dtype=np.float32)


def constant(**attribute: object) -> onnx.ModelProto:
    """Constant -> Identity -> y."""
    nodes = [helper.make_node("Constant", [], ["c"], **attribute), helper.make_node("Identity", ["c"], ["y"])]
    graph = helper.make_graph(nodes, "g", [], [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    (
        ({"value_float": 0.1}, np.float32(0.1)),
        ({"value_floats": [0.1, 0.2]}, np.array([0.1, 0.2], np.float32)),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, -4]}, np.array([3, -4])),
        ({"value": numpy_helper.from_array(np.array([[0.5]], np.float16))}, np.array([[0.5]], np.float16)),
        ({"value": numpy_helper.from_array(np.zeros((0, 2), np.float32))}, np.zeros((0, 2), np.float32)),
        ({"value": numpy_helper.from_array(BIG)}, BIG),
        ({"value": helper.make_tensor("", TensorProto.DOUBLE, [], [0.1])}, np.float64(0.1)),
    ),
)
def test_each_kind_of_number(attribute: dict, expected: np.ndarray) -> None:
    graph = model_io.load(constant(**attribute))
    assert lift_constants(graph) == 1
    assert lift_constants(graph) == 0
    exported = graph_proto.export_model(graph)
    (tensor,) = exported.graph.initializer
    found = numpy_helper.to_array(tensor)
    assert (tensor.name, found.dtype, found.shape) == ("c", expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
    assert [node.op_type for node in exported.graph.node] == ["Identity"]


EMPTY = helper.make_attribute("value_floats", [], attr_type=onnx.AttributeProto.FLOATS)


@pytest.mark.parametrize("attribute", ({"value_string": "s"}, {"value_strings": ["s", "t"]}, {}))
def test_other_kinds_are_left_alone(attribute: dict) -> None:
    model = constant(**attribute)
    model.graph.node[0].attribute.extend([] if attribute else [EMPTY])
    graph = model_io.load(model)
    assert lift_constants(graph) == 0
    (node, _) = graph_proto.export_model(graph).graph.node
    assert node.attribute == model.graph.node[0].attribute


def test_bfloat16_and_bodies() -> None:
    tensor = helper.make_tensor("", TensorProto.BFLOAT16, [2], [1.0, 2.0])
    graph = model_io.load(constant(value=tensor))
    assert lift_constants(graph) == 1
    assert graph_proto.export_model(graph).graph.initializer[0].data_type == TensorProto.BFLOAT16
    model = corpus.build("constants in branches")
    graph = model_io.load(model)
    assert lift_constants(graph) == 1, "the other is itself an output of its branch"
    assert [node.op for node in walk.nodes(graph)] == ["If", "Add", "Constant"]
    exported = graph_proto.export_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    feeds = corpus.feeds(model)
    assert conversion.same(conversion.run(exported, feeds), conversion.run(model, feeds))


def test_output_keeps_its_node_and_does_nothing_without_constants() -> None:
    graph = model_io.load(corpus.build("constants"))
    assert lift_constants(graph) == 5
    assert [node.outputs[0].name for node in graph.nodes if node.op == "Constant"] == ["held"]
    assert lift_constants(model_io.load(build.dense(4))) == 0
