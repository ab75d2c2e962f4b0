"""Oracle: the model's own results before and after."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from tests import build, conversion, corpus
from transforms import graph_proto, model_io
from transforms.convert_opset import CAST_TO_BFLOAT16, convert_opset


@pytest.mark.parametrize("opset", (7, 9, 11, 12))
@pytest.mark.parametrize("name", ("layers", "convolution", "clip", "loop", "lstm"))
def test_old_models_compute_the_same(name: str, opset: int) -> None:
    try:
        model = corpus.build(name, opset=opset)
        expected = conversion.run(model, corpus.feeds(model))
    except Exception as error:
        pytest.skip(f"no such model at opset {opset}: {str(error)[:60]}")
    graph = model_io.load(model)
    assert convert_opset(graph, CAST_TO_BFLOAT16) == 1
    assert graph.opset == CAST_TO_BFLOAT16
    converted = graph_proto.export_model(graph)
    assert [(o.domain, o.version) for o in converted.opset_import] == [("", 13)]
    assert conversion.same(conversion.run(converted, corpus.feeds(model)), expected)
    assert convert_opset(graph, CAST_TO_BFLOAT16) == 0


@pytest.mark.parametrize("version", (13, 17))
def test_does_nothing_at_or_above_the_version(version: int) -> None:
    graph = model_io.load(corpus.build("layers", opset=17))
    before = graph_proto.export_model(graph)
    assert convert_opset(graph, version) == 0
    assert graph_proto.export_model(graph) == before


def test_large_weights_names_and_words_survive() -> None:
    model = build.dense(256, opset=11)
    model.graph.node[0].doc_string = "product"
    model.metadata_props.add(key="k", value="v")
    graph = model_io.load(model)
    (weight,) = [t.values for t in graph.tensors().values() if t.name == "weight0"]
    assert convert_opset(graph, 13) == 1
    assert graph.tensors()["weight0"].values is weight, "never copied"
    converted = graph_proto.export_model(graph)
    assert [(n.name, n.doc_string) for n in converted.graph.node] == [("matmul0", "product"), ("relu0", "")]
    assert converted.metadata_props[0].value == "v"
    x = np.ones((2, 256), np.float32)
    assert conversion.same(conversion.run(converted, {"x": x}), conversion.run(model, {"x": x}))


def test_operators_without_a_way_are_named() -> None:
    text = """(float[1,2,3] x) => (float[1,2,3] y) <float[6] s = {1, 1, 1, 1, 1, 1}> {
        y = BatchNormalization <spatial = 0> (x, s, s, s, s) }"""
    graph = model_io.load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 7]> main {text}'))
    with pytest.raises(model_io.ModelError, match=r"can not be raised from opset 7 to 13: .*spatial"):
        convert_opset(graph, 13)
    assert (graph.opset, [node.op for node in graph.nodes]) == (7, ["BatchNormalization"])


def test_a_model_of_other_domains_alone_gets_the_import() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], "binarizer", domain="ai.onnx.ml", threshold=0.5)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:])
    imports = [helper.make_opsetid("ai.onnx.ml", 1)]
    loaded = model_io.load(helper.make_model(graph, opset_imports=imports, ir_version=8))
    assert convert_opset(loaded, 13) == 1
    assert convert_opset(loaded, 13) == 0
    converted = graph_proto.export_model(loaded)
    onnx.checker.check_model(converted, full_check=True)
    assert {o.domain: o.version for o in converted.opset_import} == {"": 13, "ai.onnx.ml": 1}
