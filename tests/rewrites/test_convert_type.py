"""Oracle: insert_cast's graph for numbers, the operator schemas of onnx for types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto

from tests.helpers import conversion, corpus
from tests.helpers.spread import spread
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.convert_type import convert_bodies, convert_type
from transforms.fold_weights import fold_weights
from transforms.graph import dtypes, walk
from transforms.graph.selection import select
from transforms.insert_cast import insert_cast
from transforms.model import graph_proto

LOW = TensorProto.BFLOAT16


def converted(name: str, opset: int = 22, **options: object) -> gs.Graph:
    graph = model_io.load(corpus.build(name))
    convert_opset(graph, opset)
    convert_type(graph, **options)
    return graph


def low_operators(graph: gs.Graph) -> list[str]:
    """The operators, except Casts, all of whose float outputs are bfloat16."""
    return [
        node.op
        for node in walk.nodes(graph)
        if node.op != "Cast" and any(dtypes.is_type(tensor, LOW) for tensor in node.outputs)
    ]


@pytest.mark.parametrize("name", spread(corpus.MODELS, of=2))
def test_same_numbers_as_casts(name: str) -> None:
    model = corpus.build(name)
    casts = model_io.load(model)
    convert_opset(casts, 22)
    insert_cast(casts)
    feeds = corpus.feeds(model)
    expected = conversion.run(graph_proto.export_model(casts), feeds)
    exported = graph_proto.export_model(converted(name))
    onnx.checker.check_model(exported, full_check=True)
    assert conversion.same(conversion.run_wrapped(exported, feeds), expected)


@pytest.mark.parametrize(("name", "keep"), spread(corpus.MODELS, (True, False), of=3))
def test_second_run_does_nothing(name: str, keep: bool) -> None:
    graph = converted(name, keep_io_types=keep)
    exported = graph_proto.export_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    assert convert_type(graph, keep_io_types=keep) == 0
    assert graph_proto.export_model(graph) == exported


@pytest.mark.parametrize("name", corpus.MODELS)
def test_no_node_has_a_type_that_its_schema_forbids(name: str) -> None:
    graph = converted(name)
    for node in walk.nodes(graph):
        schema = onnx.defs.get_schema(node.op, max_inclusive_version=22, domain=node.domain or "")
        for tensors, parameters in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
            for index, tensor in enumerate(tensors):
                if dtypes.is_type(tensor, LOW):
                    assert "tensor(bfloat16)" in parameters[min(index, len(parameters) - 1)].types


def test_everything_between_the_ends_is_bfloat16() -> None:
    graph = converted("layers")
    fold_weights(graph)
    assert [node.op for node in graph.nodes] == ["Cast", "MatMul", "Add", "Relu", "Gemm", "Cast"]
    assert low_operators(graph) == ["MatMul", "Add", "Relu", "Gemm"]
    graph = converted("layers", keep_io_types=False)
    fold_weights(graph)
    assert [node.op for node in graph.nodes] == ["MatMul", "Add", "Relu", "Gemm"]
    assert [tensor.dtype for tensor in (*graph.inputs, *graph.outputs)] == [LOW, LOW]


@pytest.mark.parametrize(("opset", "expected"), ((13, []), (22, ["Conv", "BatchNormalization", "Relu"])))
def test_the_opset_decides(opset: int, expected: list[str]) -> None:
    """Conv takes bfloat16 from opset 22 on; Relu from 13, but what it reads and makes must be rounded."""
    model = corpus.build("convolution", opset=13)
    graph = model_io.load(model)
    convert_opset(graph, opset)
    convert_type(graph)
    found = low_operators(graph)
    assert found == expected or (opset == 13 and "Conv" not in found)


@pytest.mark.parametrize(
    "name", ("if", "if that hands on", "nested if", "loop", "loop that hands on", "scan")
)
def test_control_flow_is_converted_inside(name: str) -> None:
    graph = converted(name)
    inner = [node for body in list(walk.graphs(graph))[1:] for node in body.nodes]
    arithmetic = [node for node in inner if node.op in ("Exp", "Mul", "Add", "Sub", "Tanh", "Neg")]
    for node in arithmetic:
        assert any(dtypes.is_type(tensor, LOW) for tensor in node.outputs), node


def test_bound_inputs_and_values_in_attributes() -> None:
    graph = converted("resize")
    (resize,) = [node for node in graph.nodes if node.op == "Resize"]
    assert dtypes.is_type(resize.inputs[0], LOW)
    assert dtypes.is_type(resize.inputs[2], TensorProto.FLOAT)
    graph = converted("constant of shape")
    kinds = [dtypes.element_type(n.attrs["value"]) for n in graph.nodes if n.op == "ConstantOfShape"]
    assert kinds == [LOW, LOW]


def test_excluded_nodes_stay_between_casts() -> None:
    graph = model_io.load(corpus.build("two consumers", opset=22))
    convert_type(graph, exclude=select(graph, op_types=["Exp"]))
    assert low_operators(graph) == ["Tanh", "Neg", "Add"]
    graph = model_io.load(corpus.build("two consumers", opset=22))
    assert convert_type(graph, exclude=select(graph, names=[], op_types=["Exp", "Tanh", "Neg", "Add"])) == 0


@pytest.mark.parametrize("op", ("If", "Loop"))
def test_excluded_control_flow_hands_float32_in_and_out(op: str) -> None:
    text = corpus.MODELS[op.lower()].replace("=> (float[N] y)", "=> (float[N] z)")
    text = text.replace("=> (float[2] y, float[K,2] steps)", "=> (float[2] z)")
    model = corpus.parse(text[: text.rindex("}")] + " z = Neg(y) }", opset=22)
    graph = model_io.load(model)
    convert_type(graph, exclude=select(graph, op_types=[op]))
    assert low_operators(graph) == ["Tanh", "Neg"]
    (node,) = [node for node in graph.nodes if node.op == op]
    inside = [
        t for body in walk.bodies(node) for inner in body.nodes for t in (*inner.inputs, *inner.outputs)
    ]
    assert not any(dtypes.is_type(tensor, LOW) for tensor in (*inside, *node.inputs, *node.outputs))


def test_operators_of_other_domains_stay() -> None:
    text = "(float[2] x) => (float[2] y) { a = Tanh(x) b = org.example.Odd(a) y = Neg(b) }"
    graph = model_io.load(corpus.parse(text, opset=22, domains=', "org.example": 1'))
    for node in graph.nodes[1:]:
        node.outputs[0].dtype, node.outputs[0].shape = np.dtype(np.float32), [2]
    convert_type(graph)
    assert low_operators(graph) == ["Tanh", "Neg"]
    (odd,) = [node for node in graph.nodes if node.op == "Odd"]
    assert [tensor.dtype for tensor in (*odd.inputs, *odd.outputs)] == [np.float32, np.float32]


def test_function_with_float32_constants_in_it_stays() -> None:
    """Oracle: the full checker, which looks into the function that MeanVarianceNormalization stands for."""
    text = """(float[1,2,3,3] x) => (float[1,2,3,3] y) {
        a = Tanh(x) y = MeanVarianceNormalization <axes = [0, 2, 3]> (a) }"""
    graph = model_io.load(corpus.parse(text))
    convert_opset(graph, 22)
    convert_type(graph)
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    assert low_operators(graph) == ["Tanh"]


def test_what_reads_a_tensor_of_unknown_type_stays_float() -> None:
    """Nothing infers the type of a Scaler's output: it is float32, and a MatMul takes one type."""
    text = """(float[3,2] x) => (float[3,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        a = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x) y = MatMul(a, w) }"""
    graph = model_io.load(corpus.parse(text, opset=22, ir_version=10, domains=', "ai.onnx.ml": 3'))
    convert_type(graph)
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)


def test_what_a_body_hands_from_one_state_to_another() -> None:
    text = """(float[3] x) => (float[3] y, float[3] z) <int64 n = {2}, float[3] w = {1, 2, 3}> {
        h = Mul(x, w)
        y, z = Loop(n, , x, h) <body = g (int64 i, bool k, float[3] s, float[3] u)
            => (bool k, float[3] u, float[3] t) { t = Mul(s, w) }> }"""
    graph = model_io.load(corpus.parse(text, opset=22, ir_version=10))
    convert_type(graph)
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
    (loop,) = (node for node in graph.nodes if node.op == "Loop")
    assert all(dtypes.is_type(tensor, LOW) for tensor in loop.outputs)


BRANCHES = """<ir_version: 8, opset_import: ["": 17]> main (float[3] x, bool c) => (float[3] y) {
    a = Neg(x)
    r = If (c) <then_branch = yes () => (float[3] p) { p = Abs(a) },
                else_branch = no () => (float[3] s) { s = Neg(a) }>
    y = Tanh(r) }"""


def test_alone_it_leaves_a_model_that_is_saved_and_computes_the_same(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(BRANCHES)
    graph = model_io.load(model)
    insert_cast(graph, "bfloat16", round_before_relu=True)
    model_io.save(graph, tmp_path / "casts.onnx")
    assert convert_bodies(graph, "bfloat16") == 1
    assert all(node.outputs for node in graph.nodes), "no Cast without ends is left"
    model_io.save(graph, tmp_path / "bodies.onnx")
    before, after = (onnx.load(tmp_path / name) for name in ("casts.onnx", "bodies.onnx"))
    for chosen in (True, False):
        feeds = {"x": np.array([0.3, -1.7, 2.9], np.float32), "c": np.array(chosen)}
        assert conversion.same(conversion.run(before, feeds), conversion.run(after, feeds))
