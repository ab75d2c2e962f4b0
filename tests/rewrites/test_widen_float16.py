"""Oracle: the float16 model run by ONNX Runtime, and NumPy where widening must be exact."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.helpers import build, conversion, corpus
from transforms import model_io
from transforms.graph import dtypes, walk
from transforms.model import graph_proto
from transforms.widen_float16 import widen_float16

HALF = TensorProto.FLOAT16


def widen(text: str, *, keep_io_types: bool = True) -> onnx.ModelProto:
    graph = model_io.load(corpus.parse(text))
    assert widen_float16(graph, keep_io_types=keep_io_types) > 0
    assert widen_float16(graph, keep_io_types=keep_io_types) == 0, "a second run has nothing to do"
    widened = graph_proto.export_model(graph)
    onnx.checker.check_model(widened, full_check=True)
    inside = [t for node in graph.nodes if node.op != "Cast" for t in (*node.inputs, *node.outputs)]
    assert not any(dtypes.is_type(tensor, dtypes.FLOAT16) for tensor in inside)
    return widened


def kinds(model: onnx.ModelProto) -> list[int]:
    return [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)]


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


X = np.array([0.1, 3.7], np.float16)


@pytest.mark.parametrize("keep", (True, False))
def test_ends_stay_half_or_become_float(keep: bool) -> None:
    widened = widen("(float16[2] x) => (float16[2] y) { a = Exp(x) y = Neg(a) }", keep_io_types=keep)
    assert operators(widened) == (["Cast", "Exp", "Neg", "Cast"] if keep else ["Exp", "Neg"])
    assert set(kinds(widened)) == {HALF if keep else TensorProto.FLOAT}
    feed = X if keep else X.astype(np.float32)
    wide = -np.exp(X.astype(np.float32))
    found = conversion.run(widened, {"x": feed})["y"]
    assert np.allclose(found.astype(np.float32), wide, rtol=2**-10 if keep else 2**-20)


def test_weights_are_widened_exactly() -> None:
    model = build.dense(8, dtype=np.float16)
    graph = model_io.load(model)
    assert widen_float16(graph, keep_io_types=False) == 4  # the weight, the product, input and output
    widened = graph_proto.export_model(graph)
    before, after = (numpy_helper.to_array(m.graph.initializer[0]) for m in (model, widened))
    assert after.dtype == np.float32
    assert np.array_equal(after, before.astype(np.float32))


def test_islands_lose_their_casts() -> None:
    widened = widen("""(float[2] x) => (float[2] y) {
        h = Cast <to = 10> (x) s = Add(h, half_w) f = Cast <to = 1> (s) y = Tanh(f) }""")
    assert operators(widened) == ["Add", "Tanh"]
    assert kinds(widened) == [TensorProto.FLOAT] * 2


def test_attributes_that_name_the_type() -> None:
    widened = widen("""(float16[2,2] x) => (float16[2,2] y, float16[2,2] z) {
        e = EyeLike <dtype = 10> (x) s = Shape(x)
        c = ConstantOfShape <value = float16[1] {1}> (s) y = Add(e, c) z = Add(c, x) }""")
    eye = np.eye(2, dtype=np.float16)
    c = numpy_helper.to_array(
        corpus.parse("(float[1] x) => (float16[1] y) { y = Constant <value = float16[1] {1}> () }")
        .graph.node[0]
        .attribute[0]
        .t
    )  # the text gives the bits, not the number
    found = conversion.run(widened, {"x": eye})
    assert np.array_equal(found["y"], eye + c)
    assert np.array_equal(found["z"], eye + c)


def test_output_that_is_used_and_output_of_a_cast() -> None:
    widened = widen("(float16[2] x) => (float16[2] a, float16[2] y) { a = Exp(x) y = Neg(a) }")
    found = conversion.run(widened, {"x": X})
    wide = np.exp(X.astype(np.float32))
    assert np.array_equal(found["a"], wide.astype(np.float16))
    assert np.array_equal(found["y"], (-wide).astype(np.float16)), "reads the value before the Cast"
    widened = widen("(int64[2] x) => (float16[2] y, float16[2] z) { y = Cast <to = 10> (x) z = Exp(y) }")
    found = conversion.run(widened, {"x": np.array([1, 2])})
    assert found["y"].tolist() == [1, 2]


def test_input_that_is_output_and_weight_that_is_output() -> None:
    widened = widen("(float16[2] x) => (float16[2] x, float16[2] y) { y = Neg(x) }")
    assert conversion.run(widened, {"x": X})["x"].tobytes() == X.tobytes()
    text = "(float16[1] x) => (float16[1] half_w, float16[1] y) { y = Add(x, half_w) }"
    widened = widen(text)
    assert set(kinds(widened)) == {HALF}
    found = conversion.run(widened, {"x": X[:1]})
    assert found["half_w"] == np.float16(0.1)
    assert found["y"] == np.float16(np.float32(X[0]) + np.float32(np.float16(0.1)))


def test_bodies() -> None:
    text = """(float16[2] x, bool c) => (float16[2] y) { a = Exp(x)
        y = If (c) <then_branch = t () => (float16[2] p) { p = Add(a, half_w) },
                    else_branch = e () => (float16[2] p) { k = Constant <value_floats = [1.0, 2.0]> ()
                        h = Cast <to = 10> (k) p = Mul(h, x) }> }"""
    widened = widen(text)
    for c in (True, False):
        feeds = {"x": X, "c": np.array(c)}
        expected = conversion.run(corpus.parse(text), feeds)["y"].astype(np.float32)
        assert np.allclose(conversion.run(widened, feeds)["y"].astype(np.float32), expected, rtol=2**-9)


def test_sequences_inside_and_at_the_ends() -> None:
    widened = widen("""(float16[2] x) => (float16[2] y) <int64 at = {0}> {
        a = Exp(x) s = SequenceConstruct(a, x) e = SequenceAt(s, at) y = Neg(e) }""")
    expected = (-np.exp(X.astype(np.float32))).astype(np.float16)
    assert np.array_equal(conversion.run(widened, {"x": X})["y"], expected)
    graph = model_io.load(corpus.parse("(float16[2] x) => (seq(float16[2]) s) { s = SequenceConstruct(x) }"))
    with pytest.raises(ValueError, match="'s' is a sequence of float16"):
        widen_float16(graph)


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("(float16[2] x) => (optional(float16[2]) y) { y = Optional(x) }", "'y' is an optional of float16"),
        ("(optional(float16[2]) x) => (float16[2] y) { y = OptionalGetElement(x) }", "'x' is an optional of"),
        (
            "(float16[2] x) => (optional(seq(float16[2])) y) { s = SequenceConstruct(x) y = Optional(s) }",
            "'y' is an optional of float16",
        ),
        ("(seq(float16[2]) x) => (seq(float16[2]) y) { y = Identity(x) }", "'x' is a sequence of float16"),
        (
            """(float16[2] x, bool c) => (optional(float16[2]) y) {
            y = If (c) <
                then_branch = t () => (optional(float16[2]) o) { o = Optional(x) },
                else_branch = e () => (optional(float16[2]) p) { p = Optional <type = float16[2]> () }> }""",
            "'y' is an optional of float16",
        ),
    ),
)
def test_what_holds_tensors_at_the_ends_is_refused(text: str, message: str) -> None:
    """A session would refuse the model that widening makes of it."""
    graph = model_io.load(corpus.parse(text))
    before = graph_proto.export_model(graph)
    with pytest.raises(ValueError, match=message):
        widen_float16(graph)
    assert graph_proto.export_model(graph) == before


def test_empty_optionals_inside() -> None:
    """Oracle: the float16 model."""
    text = """(float16[2] x, bool c) => (float16[2] y, bool h) {
        o = If (c) <then_branch = t () => (optional(float16[2]) p) { a = Neg(x) p = Optional(a) },
                    else_branch = e () => (optional(float16[2]) q) { q = Optional <type = float16[2]> () }>
        h = OptionalHasElement(o)
        y = If (h) <then_branch = f () => (float16[2] r) { r = OptionalGetElement(o) },
                    else_branch = g () => (float16[2] s) { s = Abs(x) }> }"""
    widened = widen(text)
    for c in (True, False):
        feeds = {"x": X, "c": np.array(c)}
        expected, found = conversion.run(corpus.parse(text), feeds), conversion.run(widened, feeds)
        assert all(np.array_equal(found[name], expected[name]) for name in ("y", "h"))


@pytest.mark.parametrize("name", sorted(corpus.MODELS.keys() - {"half island", "half input", "half output"}))
def test_does_nothing_to_other_types(name: str) -> None:
    graph = model_io.load(corpus.build(name))
    before = graph_proto.export_model(graph)
    assert widen_float16(graph) == 0
    assert graph_proto.export_model(graph) == before


def test_names_do_not_collide() -> None:
    model = corpus.parse(
        "(float16[2] x) => (float16[2] y) { x_float32 = Exp(x) y_wide = Neg(x_float32) y = Abs(y_wide) }"
    )
    graph = model_io.load(model)
    widen_float16(graph)
    made = [tensor.name for node in walk.nodes(graph) for tensor in node.outputs]
    assert len(made) == len(set(made))
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)
