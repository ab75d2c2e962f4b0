"""Oracle: tests/helpers/rounded.py for numbers, and the wiring written out by hand."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto

from tests.helpers import conversion, corpus
from transforms import model_io
from transforms.graph import dtypes, walk
from transforms.graph.selection import select
from transforms.insert_cast import insert_cast
from transforms.model import graph_proto
from transforms.run.run_model import open_model

LOW = TensorProto.BFLOAT16


def inserted(text: str, **options: object) -> onnx.ModelProto:
    graph = model_io.load(corpus.parse(text))
    insert_cast(graph, **options)
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def wiring(graph: onnx.GraphProto) -> list[str]:
    return [f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in graph.node]


def test_wiring_and_names() -> None:
    model = inserted("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) y = Sin(a) }")
    assert wiring(model.graph) == [
        "x_bf16 = Cast(x)",
        "x_float32 = Cast(x_bf16)",
        "w_bf16 = Cast(w)",
        "w_float32 = Cast(w_bf16)",
        "a = Mul(x_float32, w_float32)",
        "a_bf16 = Cast(a)",
        "a_float32 = Cast(a_bf16)",
        "y_raw = Sin(a_float32)",
        "y_bf16 = Cast(y_raw)",
        "y = Cast(y_bf16)",
    ]
    assert len({node.name for node in model.graph.node if node.op_type == "Cast"}) == 8


def test_relu_gets_no_pair_before_it_unless_asked() -> None:
    text = "(float[2] x) => (float[2] y) { a = Sin(x) y = Relu(a) }"
    assert "y_raw = Relu(a)" in wiring(inserted(text).graph)
    assert "y_raw = Relu(a_float32)" in wiring(inserted(text, round_before_relu=True).graph)
    feeds = {"x": np.array([0.3, -0.7], np.float32)}
    both = [conversion.run(inserted(text, round_before_relu=one), feeds) for one in (False, True)]
    assert conversion.same(*both)


def test_input_of_the_model_into_relu_is_rounded() -> None:
    wires = wiring(inserted("(float[2] x) => (float[2] y) { y = Relu(x) }").graph)
    assert "y_raw = Relu(x_float32)" in wires


def test_relu_before_an_input_tied_to_float_is_not_spared() -> None:
    """What Relu makes is not rounded there, so what it reads has to be."""
    model = inserted("""(float[1,1,2,2] x, float[4] s) => (float[A,B,C,D] y) {
        t = Sin(s) r = Relu(t) y = Resize(x, , r) }""")
    assert "r = Relu(t_float32)" in wiring(model.graph)
    (resize,) = [node for node in model.graph.node if node.op_type == "Resize"]
    assert resize.input[2] == "r"


@pytest.mark.parametrize("name", corpus.MODELS)
@pytest.mark.parametrize("keep", (True, False))
def test_second_run_does_nothing(name: str, keep: bool) -> None:
    graph = model_io.load(corpus.build(name))
    assert insert_cast(graph, keep_io_types=keep) > 0
    exported = graph_proto.export_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    assert insert_cast(graph, keep_io_types=keep) == 0
    assert graph_proto.export_model(graph) == exported
    assert insert_cast(model_io.load(exported), keep_io_types=keep) == 0, "neither after a reload"


@pytest.mark.parametrize("name", corpus.MODELS)
def test_every_float_between_two_nodes_comes_from_a_pair(name: str) -> None:
    """Independent of the plan: for each float32 input of each node, who made it?"""
    graph = model_io.load(corpus.build(name))
    insert_cast(graph)
    spared = {"Relu", "Cast", "Resize", "Shape", "QuantizeLinear", "DequantizeLinear"}
    outside = {id(t) for inner in list(walk.graphs(graph))[1:] for t in inner.outputs}
    for node in walk.nodes(graph):
        for tensor in node.inputs:
            if not dtypes.is_type(tensor, dtypes.FLOAT) or node.op in spared or id(tensor) in outside:
                continue
            made = [producer.op for producer in tensor.inputs]
            from_pair = made == ["Cast"] and dtypes.is_type(tensor.inputs[0].inputs[0], dtypes.BFLOAT16)
            assert from_pair or name in ("shape arithmetic", "scale by size", "eye and range"), (node, tensor)


def test_types_of_ends_change_when_asked() -> None:
    text = """(float[2] x, int64[2] i) => (float[2] a, float[2] y, int64[2] j) {
        a = Sin(x) y = Neg(a) j = Abs(i) }"""
    model = inserted(text, keep_io_types=False)
    kinds = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    assert kinds == [LOW, TensorProto.INT64, LOW, LOW, TensorProto.INT64]
    assert wiring(model.graph) == [
        "x_float32 = Cast(x)",
        "a_raw = Sin(x_float32)",
        "a = Cast(a_raw)",
        "a_float32 = Cast(a)",
        "y_raw = Neg(a_float32)",
        "y = Cast(y_raw)",
        "j = Abs(i)",
    ]


def test_excluded_nodes() -> None:
    text = """(float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        [p] a = Mul(x, w) [q] b = Mul(a, w) [r] y = Mul(b, x) }"""
    graph = model_io.load(corpus.parse(text))
    assert insert_cast(graph, exclude=select(graph, names=["p", "q"])) == 3
    assert wiring(graph_proto.export_model(graph).graph)[2:] == [
        "a = Mul(x, w)",
        "b = Mul(a, w)",
        "b_bf16 = Cast(b)",
        "b_float32 = Cast(b_bf16)",
        "y_raw = Mul(b_float32, x_float32)",
        "y_bf16 = Cast(y_raw)",
        "y = Cast(y_bf16)",
    ]


def test_other_type() -> None:
    model = inserted("(float[2] x) => (float[2] y) { y = Sin(x) }", dtype="float16")
    x = np.array([0.1, 2.3], np.float32)
    expected = np.sin(x.astype(np.float16).astype(np.float32)).astype(np.float16).astype(np.float32)
    assert np.allclose(conversion.run(model, {"x": x})["y"], expected, rtol=2**-11)
    with pytest.raises(ValueError, match="dtype 'int8' is unknown, legal are bfloat16, float16"):
        insert_cast(gs.Graph(), "int8")


def test_names_in_use_are_avoided() -> None:
    model = inserted(
        "(float[2] x) => (float[2] y) { x_bf16 = Neg(x) x_float32 = Neg(x_bf16) y = Neg(x_float32) }"
    )
    names = [name for node in model.graph.node for name in node.output]
    assert len(names) == len(set(names))


def test_pairs_stand_where_captured_values_are_ready() -> None:
    model = inserted(corpus.MODELS["nested if"])
    assert wiring(model.graph)[-3].startswith("y_raw = If(c)")
    branch = model.graph.node[[n.op_type for n in model.graph.node].index("If")].attribute[0].g
    assert "b = Exp(a_float32)" in wiring(branch), "the pair of a captured tensor stays outside"
    assert "a_bf16 = Cast(a)" in wiring(model.graph)


def test_the_ratio_of_a_dropout_stays_as_it_is() -> None:
    """Oracle: ONNX Runtime, which refused a body with a Dropout of what it captures, ratio rounded."""
    text = """(float[B,4,6] x, int64 n) => (float[B,4,6] y) {
        h = Neg(x)
        y = Loop(n, , h) <body = body (int64 i, bool k, float[B,4,6] s) => (bool l, float[B,4,6] o)
            <float r = {0.3}> {
            l = Identity(k) d = Dropout(h, r) t = Transpose <perm = [1, 0, 2]> (d)
            u = Transpose <perm = [1, 0, 2]> (t) o = Add(u, s) }> }"""
    graph = model_io.load(corpus.parse(text))
    insert_cast(graph)
    (dropout,) = (node for node in walk.nodes(graph) if node.op == "Dropout")
    assert dropout.inputs[1].name == "r" and dropout.inputs[0].name.endswith("_float32")
    feed = {"x": np.ones((2, 4, 6), np.float32), "n": np.array(2)}
    assert np.array_equal(open_model(graph).run(feed)["y"], np.full((2, 4, 6), -3, np.float32))
