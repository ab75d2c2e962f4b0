"""Oracle: the graph with Casts in the same places."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.helpers import conversion, corpus
from transforms import model_io
from transforms.graph.selection import select
from transforms.insert_bf16_qdq import insert_bf16_qdq
from transforms.insert_cast import insert_cast
from transforms.model import graph_proto

PAIR = ("ExtendedQuantizeLinear", "ExtendedDequantizeLinear")


@pytest.mark.parametrize("name", corpus.MODELS)
def test_same_places_and_numbers_as_casts(name: str) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    casts, pairs = model_io.load(model), model_io.load(model)
    assert insert_cast(casts) == insert_bf16_qdq(pairs)
    assert insert_bf16_qdq(pairs) == 0
    with_casts, with_pairs = graph_proto.export_model(casts), graph_proto.export_model(pairs)
    onnx.checker.check_model(with_pairs, full_check=True)
    assert conversion.same(conversion.run(with_pairs, feeds), conversion.run(with_casts, feeds))


@pytest.mark.parametrize("domain", ("ai.onnx.contrib", "com.amd.quark"))
def test_nodes_share_scale_and_zero_point(domain: str) -> None:
    graph = model_io.load(corpus.build("if"))
    insert_bf16_qdq(graph, domain=domain)
    model = graph_proto.export_model(graph)
    assert {(o.domain, o.version) for o in model.opset_import} == {("", 18), (domain, 1)}
    inner = [node for attribute in model.graph.node[-3].attribute for node in attribute.g.node]
    found = [node for node in (*model.graph.node, *inner) if node.op_type in PAIR]
    assert {tuple(node.input[1:]) for node in found} == {("bf16_scale", "bf16_zero_point")}
    assert {node.domain for node in found} == {domain}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    assert numpy_helper.to_array(stored["bf16_scale"]).tolist() == 1
    assert stored["bf16_zero_point"].data_type == TensorProto.BFLOAT16
    assert (list(stored["bf16_scale"].dims), list(stored["bf16_zero_point"].dims)) == ([], [])


def test_types_and_shapes_are_known_around_the_pairs() -> None:
    """Shape inference stops at operators it does not know, so the model has to say them."""
    graph = model_io.load(corpus.build("layers"))
    insert_bf16_qdq(graph)
    model = graph_proto.export_model(graph)
    known = {value.name: value.type.tensor_type for value in (*model.graph.value_info, *model.graph.output)}
    for node in model.graph.node:
        if node.op_type in PAIR:
            low = node.op_type == PAIR[0]
            assert known[node.output[0]].elem_type == (TensorProto.BFLOAT16 if low else TensorProto.FLOAT)
    assert [dim.dim_param or dim.dim_value for dim in known["a_float32"].shape.dim] == ["N", 64]


def test_does_nothing_without_float_tensors_or_when_all_is_excluded() -> None:
    graph = model_io.load(corpus.parse("(int64[2] x) => (int64[2] y) { y = Abs(x) }"))
    assert insert_bf16_qdq(graph) == 0
    graph = model_io.load(corpus.build("two consumers"))
    assert insert_bf16_qdq(graph, exclude=select(graph, op_types=["Tanh", "Exp", "Neg", "Add"])) == 0
    assert [o.domain for o in graph_proto.export_model(graph).opset_import] == [""]


def test_names_in_use_are_avoided() -> None:
    text = "(float[2] x) => (float[2] y) <float bf16_scale = {2}> { y = Mul(x, bf16_scale) }"
    graph = model_io.load(corpus.parse(text))
    insert_bf16_qdq(graph)
    x = np.array([1, 3], np.float32)
    assert conversion.run(graph_proto.export_model(graph), {"x": x})["y"].tolist() == [2, 6]
