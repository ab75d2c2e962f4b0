"""Oracle: the model that went in, field by field."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.helpers import build, conversion, corpus
from tests.helpers.conversion import round_trip
from transforms.model import detached_weights, graph_proto

LARGE = np.arange(detached_weights.LARGE // 4, dtype=np.float32).reshape(4, -1)
SMALL = np.array([0.5, -2], np.float32)


def documented() -> onnx.ModelProto:
    model = corpus.build("if")
    model.domain, model.model_version, model.doc_string = "org.example", 7, "of the model"
    model.producer_name, model.producer_version = "maker", "1.2"
    model.metadata_props.add(key="b", value="2")
    model.metadata_props.add(key="a", value="1")
    graph = model.graph
    graph.name, graph.doc_string = "the graph", "of the graph"
    graph.metadata_props.add(key="graph", value="yes")
    graph.input[0].doc_string, graph.output[0].doc_string = "of x", "of y"
    graph.input[0].metadata_props.add(key="unit", value="m")
    annotation = graph.quantization_annotation.add(tensor_name="a")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    branch = graph.node[1].attribute[0].g
    for node in (*graph.node, *branch.node):
        node.doc_string = f"of {node.output[0]}"
        node.metadata_props.add(key="of", value=node.output[0])
    return model


def test_words_about_the_model_are_kept() -> None:
    model = documented()
    result = round_trip(model)
    for name in ("domain", "model_version", "doc_string", "producer_name", "producer_version", "ir_version"):
        assert getattr(result, name) == getattr(model, name)
    assert {p.key: p.value for p in result.metadata_props} == {"a": "1", "b": "2"}
    for name in ("name", "doc_string", "metadata_props", "quantization_annotation", "input", "output"):
        assert getattr(result.graph, name) == getattr(model.graph, name)
    assert [node.doc_string for node in result.graph.node] == ["of a", "of y"]
    branch = result.graph.node[1].attribute[0].g
    assert [(node.doc_string, node.metadata_props[0].value) for node in branch.node] == [
        ("of q", "q"),
        ("of p", "p"),
    ]


@pytest.mark.parametrize("name", corpus.MODELS)
def test_every_model_computes_the_same_after_a_round_trip(name: str) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    assert conversion.same(conversion.run(round_trip(model), feeds), conversion.run(model, feeds))


@pytest.mark.parametrize("name", corpus.MODELS)
def test_nodes_and_weights_stay_where_they_are(name: str) -> None:
    model = corpus.build(name)
    result = round_trip(model)
    assert [(n.op_type, n.name, list(n.input), list(n.output)) for n in result.graph.node] == [
        (n.op_type, n.name, list(n.input), list(n.output)) for n in model.graph.node
    ]
    assert weights(result.graph) == weights(model.graph)


def weights(graph: onnx.GraphProto) -> dict[str, bytes]:
    """All initializers, also of bodies: one that only a body uses may have moved into it."""
    bodies = [attribute.g for node in graph.node for attribute in node.attribute]
    found = {t.name: numpy_helper.to_array(t).tobytes() for t in graph.initializer}
    return found | {name: data for body in bodies for name, data in weights(body).items()}


def test_light_model_has_no_large_weights() -> None:
    model = build.model(
        [helper.make_node("MatMul", ["x", "big"], ["a"]), helper.make_node("Mul", ["a", "half"], ["y"])],
        [build.value("x", ["n", 4])],
        [build.value("y", ["n", LARGE.shape[1]])],
        {"big": LARGE, "half": SMALL[:1]},
    )
    light, weights = detached_weights.split(model)
    assert list(weights) == ["big"]
    assert [t.name for t in light.graph.initializer] == ["half"]
    assert light.ByteSize() < 500
    graph = graph_proto.import_model(model)
    light, weights = graph_proto.export_light(graph)
    assert light.ByteSize() < 500
    assert [t.name for t in light.graph.initializer] == ["big", "half"]
    assert weights["big"].tobytes() == LARGE.tobytes()
    hidden = detached_weights.as_inputs(light, weights)
    assert [value.name for value in hidden.graph.input] == ["x", "big"]
    _, weights = graph_proto.export_light(graph, hide=lambda tensor: False)
    assert not weights
    detached_weights.fill(light, {"big": LARGE})
    assert numpy_helper.to_array(light.graph.initializer[0]).tobytes() == LARGE.tobytes()


@pytest.mark.parametrize("array", (LARGE, LARGE[:1, :2]))
def test_initializers_that_are_inputs_become_constants(array: np.ndarray) -> None:
    model = build.model([helper.make_node("Add", ["x", "w"], ["y"])], [build.value("x", array.shape)],
                        [build.value("y", array.shape)], {"w": array}, opset=9)  # fmt: skip
    model.graph.input.append(build.value("w", array.shape))
    model.ir_version = 3
    onnx.checker.check_model(model)
    result = round_trip(model)
    assert [value.name for value in result.graph.input] == ["x"]
    assert [t.name for t in result.graph.initializer] == ["w"]
    assert result.ir_version == 4
    feeds = {"x": array}
    assert conversion.same(conversion.run(result, feeds), conversion.run(model, feeds))


@pytest.mark.parametrize("size", (2, detached_weights.LARGE // 4))
def test_captured_weight_is_stored_once(size: int) -> None:
    text = f"""(float[{size}] x, bool c) => (float[{size}] y) {{
        y = If (c) <then_branch = t () => (float[{size}] p) {{ p = Add(x, w) }},
                    else_branch = e () => (float[{size}] p) {{ p = Mul(x, w) }}> }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> main {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.full(size, 3, np.float32), "w"))
    result = round_trip(model)
    branches = [attribute.g for attribute in result.graph.node[0].attribute]
    assert [len(branch.initializer) for branch in branches] == [0, 0]
    assert [t.name for t in result.graph.initializer] == ["w"]
    feeds = {"x": np.arange(size, dtype=np.float32), "c": np.array(False)}
    assert conversion.same(conversion.run(result, feeds), conversion.run(model, feeds))


def test_large_weight_of_a_branch_stays_in_it() -> None:
    size = detached_weights.LARGE // 4
    model = corpus.parse(f"""(float[{size}] x, bool c) => (float[{size}] y) {{
        y = If (c) <then_branch = t () => (float[{size}] p) {{ p = Exp(x) }},
                    else_branch = e () => (float[{size}] p) {{ p = Neg(x) }}> }}""")
    branch = model.graph.node[0].attribute[0].g
    branch.initializer.append(numpy_helper.from_array(np.full(size, 3, np.float32), "inner"))
    branch.node[0].CopyFrom(helper.make_node("Mul", ["x", "inner"], ["p"]))
    result = round_trip(model)
    assert not result.graph.initializer
    assert [t.name for t in result.graph.node[0].attribute[0].g.initializer] == ["inner"]


def test_default_domain_imported_twice() -> None:
    model = corpus.build("relu only")
    model.opset_import.add(domain="ai.onnx", version=17)
    model.opset_import.add(domain="org.unused", version=3)
    result = round_trip(model)
    assert {(o.domain, o.version) for o in result.opset_import} == {("", 18), ("org.unused", 3)}


def test_rare_attributes_and_empty_lists_are_kept() -> None:
    node = helper.make_node("Odd", ["x"], ["y"], domain="org.example", none=[1])
    del node.attribute[0].ints[:]
    for name, value in (
        ("several", [numpy_helper.from_array(SMALL)]),
        ("type", helper.make_tensor_type_proto(1, [2])),
    ):
        node.attribute.append(helper.make_attribute(name, value))
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(SMALL), numpy_helper.from_array(np.array([0, 3])), [4]
    )
    node.attribute.append(helper.make_attribute("sparse", sparse))
    graph = helper.make_graph([node], "g", [build.value("x", [2])], [build.value("y", [2])])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("org.example", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    result = graph_proto.export_model(graph_proto.import_model(model))
    attributes = {attribute.name: attribute for attribute in result.graph.node[0].attribute}
    assert attributes == {attribute.name: attribute for attribute in node.attribute}


def test_binary_strings_are_kept() -> None:
    """As of tokenizers, which hold their vocabulary as a file."""
    binary = {"model": b"\n\xba\x0e\xff", "pieces": [b"text", b"\x80"], "plain": b"text"}
    model = corpus.build("if")
    branch = model.graph.node[1].attribute[0].g
    for graph in (model.graph, branch):
        graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in binary.items())
    result = graph_proto.export_model(graph_proto.import_model(model))
    for graph in (result.graph, result.graph.node[1].attribute[0].g):
        found = {a.name: helper.get_attribute_value(a) for a in graph.node[0].attribute if a.name in binary}
        assert found == binary


def test_local_functions_are_inlined() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18, "local": 1]>
        main (float[N] x) => (float[N] y) { a = local.twice(x) y = local.twice(a) }
        <domain: "local", opset_import: ["": 18]> twice (p) => (q) { q = Add(p, p) }""")
    result = round_trip(model)
    assert [node.op_type for node in result.graph.node] == ["Add", "Add"]
    assert not result.functions
    feeds = {"x": SMALL}
    assert conversion.run(result, feeds)["y"].tolist() == [2.0, -8.0]


@pytest.mark.parametrize(
    "kind", ("FLOAT", "BFLOAT16", "FLOAT8E4M3FN", "INT4", "STRING", "COMPLEX64", "UINT64", "BOOL")
)
def test_constants_of_every_type_are_kept(kind: str) -> None:
    element = TensorProto.DataType.Value(kind)
    values = ["a", "b"] if kind == "STRING" else [1, 0]
    tensor = helper.make_tensor("w", element, [2], values)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", element, [2])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (kept,) = round_trip(model).graph.initializer
    assert kept.data_type == element
    assert np.array_equal(numpy_helper.to_array(kept), numpy_helper.to_array(tensor))


def test_a_map_output_keeps_its_type() -> None:
    nodes = [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])]
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    output = helper.make_value_info("y", helper.make_sequence_type_proto(kind))
    graph = helper.make_graph(nodes, "g", [build.value("x", [1, 2])], [output])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    assert round_trip(model).graph.output[0].type == output.type


def test_versions_rise_only_as_far_as_the_content_needs() -> None:
    assert round_trip(corpus.build("relu only", ir_version=8)).ir_version == 8
    model = corpus.build("relu only", opset=18, ir_version=8)
    model.ir_version = 4
    assert round_trip(model).ir_version >= helper.find_min_ir_version_for(model.opset_import)
