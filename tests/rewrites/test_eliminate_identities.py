"""Nodes that change nothing. Oracle: the model as it was, in ONNX Runtime, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import conversion, corpus
from transforms import model_io
from transforms.eliminate_identities import eliminate_identities
from transforms.graph import walk

NUMBERS = np.float32([[0.0, -0.0, 1e-44, np.inf], [-3.5, np.nan, 7.0, -1e30]])


def left(text: str, opset: int = 17, **choice: object) -> list[str]:
    """Return the operators that are left; the results keep their bits, and a second run changes nothing."""
    model = corpus.parse(text, opset=opset)
    before = [node.op_type for node in model.graph.node]
    graph = model_io.load(model)
    count, after = conversion.rewritten(graph, lambda one: eliminate_identities(one, **choice))  # type: ignore[arg-type]
    operators = [node.op for node in graph.nodes]
    assert count == len(before) - len(operators)
    feeds = {
        value.name: NUMBERS if value.type.tensor_type.elem_type == 1 else np.int64([[1, -2, 3, 0]])
        for value in model.graph.input
    }
    assert conversion.same(conversion.run(model, feeds), conversion.run(after, feeds))
    return operators


HEAD = "(float[N, 4] x) => (float[N, 4] y)"


@pytest.mark.parametrize(
    "body",
    [
        "a = Identity(x) y = Abs(a)",
        "a = Abs(x) y = Identity(a)",
        "a = Identity(x) b = Identity(a) c = Abs(b) d = Identity(c) y = Identity(d)",
        "a = Cast <to = 1> (x) y = Abs(a)",
        "a, mask = Dropout(x) y = Abs(a)",
        "a = Concat <axis = 0> (x) b = Sum(a) c = Max(b) d = Min(c) e = Mean(d) y = Abs(e)",
        "s = Constant <value_ints = [0, -1]> () a = Reshape(x, s) y = Abs(a)",
        "a = Flatten(x) y = Abs(a)",
        "s = Constant <value_ints = [1, 4]> () a = Expand(x, s) y = Abs(a)",
        "a = Transpose <perm = [0, 1]> (x) y = Abs(a)",
        "a = Transpose <perm = [1, 0]> (x) b = Transpose <perm = [1, 0]> (a) y = Abs(b)",
        "p = Constant <value_ints = [0, 0, 0, 0]> () a = Pad(x, p) y = Abs(a)",
        "o = Constant <value_float = 1.0> () a = Mul(x, o) b = Mul(o, a) c = Div(b, o) y = Abs(c)",
        "z = Constant <value_float = 0.0> () a = Sub(x, z) y = Abs(a)",
    ],
)
def test_nodes_that_pass_their_input_on(body: str) -> None:
    assert [op for op in left(f"{HEAD} {{ {body} }}") if op != "Constant"] == ["Abs"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Identity(x)",  # an input is no output without a node
        "a = Cast <to = 11> (x) b = Exp(a) y = Cast <to = 1> (b)",
        "a, m = Dropout(x) b = Cast <to = 1> (m) y = Add(a, b)",
        "s = Constant <value_ints = [4, -1]> () a = Reshape(x, s) b = Transpose(a) y = Abs(b)",
        "a = Transpose(x) b = Exp(a) y = Transpose(b)",
        "p = Constant <value_ints = [0, 1, 0, -1]> () y = Pad(x, p)",
        "z = Constant <value_float = 0.0> () y = Add(x, z)",  # -0 becomes 0
        "z = Constant <value_float = -0.0> () y = Sub(x, z)",
        "o = Constant <value_float = 1.0> () y = Div(o, x)",
        "z = Constant <value_float = 0.0> () y = Sub(z, x)",
        "s = Constant <value_ints = [2, 1]> () a = Abs(x) b = ReduceSum <keepdims = 1> (a) y = Expand(b, s)",
    ],
)
def test_nodes_that_change_something_stay(body: str) -> None:
    text = f"{HEAD} {{ {body} }}"
    if "Expand" in body:
        text = text.replace("float[N, 4] y", "float[2, 1] y")
    expected = [node.op_type for node in corpus.parse(text, opset=17).graph.node]
    assert left(text) == expected


def test_zero_is_added_to_integers() -> None:
    text = "(int64[N, 4] x) => (int64[N, 4] y) { z = Constant <value_int = 0> () a = Add(z, x) y = Abs(a) }"
    assert left(text) == ["Constant", "Abs"]


def test_a_factor_of_more_axes_stays() -> None:
    text = """(float[N, 4] x) => (float[1, N, 4] y) <float[1, 1, 1] one = {1.0}> { y = Mul(x, one) }"""
    assert left(text) == ["Mul"]


def test_two_names_of_one_output_stay() -> None:
    text = "(float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { y = Abs(x) z = Identity(y) }"
    assert left(text) == ["Abs", "Identity"]


def test_a_transpose_that_others_read_stays() -> None:
    text = """(float[N, 4] x) => (float[N, 4] y, float[4, N] z) {
        a = Transpose(x) b = Transpose <perm = [1, 0]> (x) c = Transpose <perm = [1, 0]> (b)
        y = Abs(c) z = Add(a, b) }"""
    model = corpus.parse(text, opset=17)
    graph = model_io.load(model)
    count, after = conversion.rewritten(graph, eliminate_identities)
    assert (count, [node.op for node in graph.nodes]) == (1, ["Transpose", "Transpose", "Abs", "Add"])
    feeds = {"x": NUMBERS}
    assert conversion.same(conversion.run(model, feeds), conversion.run(after, feeds))


def test_in_bodies_their_outputs_keep_a_node() -> None:
    text = """(float[N, 4] x, bool c) => (float[N, 4] y) {
        y = If (c) <then_branch = t () => (float[N, 4] p) { a = Identity(x) b = Abs(a) p = Identity(b) },
                    else_branch = e () => (float[N, 4] q) { q = Identity(x) }> }"""
    graph = model_io.load(corpus.parse(text, opset=17))
    count, _ = conversion.rewritten(graph, eliminate_identities)
    assert (count, [node.op for node in walk.nodes(graph)]) == (2, ["If", "Abs", "Identity"])


def test_only_chosen_nodes() -> None:
    text = f"{HEAD} {{ [one] a = Identity(x) [two] b = Identity(a) y = Abs(b) }}"
    assert left(text, nodes=lambda node: node.name == "one") == ["Identity", "Abs"]
    assert left(text, exclude=["one"]) == ["Identity", "Abs"]
    graph = model_io.load(corpus.parse(text, opset=17))
    assert eliminate_identities(graph, nodes=["one"]) == 1
    with pytest.raises(ValueError, match="no node name or operator type matches 'one'"):
        eliminate_identities(graph, nodes=["one"])


def test_the_type_of_a_cast_may_be_numpys() -> None:
    graph = model_io.load(corpus.parse(f"{HEAD} {{ a = Cast <to = 1> (x) y = Abs(a) }}", opset=17))
    graph.nodes[0].attrs["to"] = np.float32
    assert eliminate_identities(graph) == 1
