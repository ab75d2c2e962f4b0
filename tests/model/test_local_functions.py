"""Oracle: ONNX Runtime on the model as it stands, whose own inlining knows defaults."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers import conversion
from transforms.model import graph_proto
from transforms.model.local_functions import write_defaults
from transforms.model.read_model import ModelError

LEAKY = "D <k: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @k> (x) }"
OUTER = "O <q> (x) => (y) { y = f.D <k: float = @q> (x) }"
CONSTANT = "D <k: %s> (x) => (y) { c = Constant <%s = @k> () d = Cast <to = 1> (c) y = Mul (x, d) }"

CASES = {
    "float": ("y = f.D (x)", LEAKY),
    "given": ("y = f.D <k = 0.25> (x)", LEAKY),
    "int": ("y = f.D (x)", "D <k: int = 0> (x) => (y) { y = Softmax <axis: int = @k> (x) }"),
    "string": (
        "y = f.D (x)",
        'D <k: string = "tanh"> (x) => (y) { y = Gelu <approximate: string = @k> (x) }',
    ),
    "ints": ("y = f.D (x)", "D <k: ints = [1, 0]> (x) => (y) { y = Transpose <perm: ints = @k> (x) }"),
    "value": ("y = f.D (x)", CONSTANT % ("tensor = float {0.3}", "value: tensor")),
    "value_float": ("y = f.D (x)", CONSTANT % ("float = 0.3", "value_float: float")),
    "value_int": ("y = f.D (x)", CONSTANT % ("int = 3", "value_int: int")),
    "value_ints": ("y = f.D (x)", CONSTANT % ("ints = [1, 2, 3, 4]", "value_ints: ints")),
    "no default": ("y = f.D (x)", LEAKY.replace("k: float = 0.5", "k")),
    "nested, without": ("y = f.O (x)", OUTER, LEAKY),
    "nested, with": ("y = f.O (x)", OUTER.replace("q", "q: float = 0.3", 1), LEAKY),
    "both ways": ("a = f.O (x) b = Neg(a) c = f.O <q = 0.2> (b) y = f.O (c)", OUTER, LEAKY),
    "three levels": (
        "a = f.P (x) b = Neg(a) y = f.P <p = 0.2> (b)",
        "P <p> (x) => (y) { a = f.O <q: float = @p> (x) b = Neg (a) y = f.O <q = 0.9> (b) }",
        OUTER,
        LEAKY,
    ),
    "in a body of the function": (
        "y = f.D (x)",
        "D <k: float = 0.5> (x) => (y) { c = Constant <value = bool {1}> () y = If (c) <"
        "then_branch = t () => (u) { u = LeakyRelu <alpha: float = @k> (x) },"
        "else_branch = e () => (v) { v = Relu (x) }> }",
    ),
    "called in a body": (
        "c = Constant <value = bool {1}> () y = If (c) <"
        "then_branch = t () => (u) { u = f.D (x) }, else_branch = e () => (v) { v = Relu (x) }>",
        LEAKY,
    ),
    "overloads": (
        "a = f.D:one (x) b = Neg (a) y = f.D:two (b)",
        ("one", LEAKY),
        ("two", LEAKY.replace("0.5", "0.2")),
    ),
}
"""Nodes of a graph, and functions."""


def model(nodes: str, *functions: str | tuple[str, str], opset: int = 20, own: int = 20) -> onnx.ModelProto:
    text = (
        f'<ir_version: 10, opset_import: ["": {opset}, "f": 1]> '
        f"main (float[4, 4] x) => (float[A, B] y) {{ {nodes} }}"
    )
    for one in functions:
        overload, function = ("", one) if isinstance(one, str) else (f'overload: "{one[0]}", ', one[1])
        text += f'<domain: "f", {overload}opset_import: ["": {own}, "f": 1]> {function}'
    return onnx.parser.parse_model(text)


def same(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 4), np.float32)}
    return conversion.same(conversion.run(one, feeds), conversion.run(other, feeds))


@pytest.mark.parametrize("name", CASES)
def test_inlined_calls_have_the_defaults(name: str) -> None:
    source = model(*CASES[name])  # type: ignore[arg-type]
    content = source.SerializeToString()
    result = conversion.round_trip(source)
    assert not result.functions and source.SerializeToString() == content
    assert same(source, result)


def test_graphs_that_are_attributes_of_a_call_are_inlined() -> None:
    """Which ONNX Runtime does not take; oracle: the If that it comes to."""
    branch = "t () => (u) { u = f.D (x) }"
    function = "G <g> (x) => (y) { y = If (x) <then_branch: graph = @g, else_branch: graph = @g> }"
    light = graph_proto.inline(model(f"y = f.G <g = {branch}> (c)", function, LEAKY))
    assert not light.functions
    alphas = [a.f for body in light.graph.node[0].attribute for node in body.g.node for a in node.attribute]
    assert alphas == [0.5, 0.5]


def test_a_model_without_defaults_is_left_alone() -> None:
    source = model(*CASES["no default"])  # type: ignore[arg-type]
    assert write_defaults(source) is source

    source = model("y = f.D (x)", "D <k> (x) => (y) { y = Relu (x) }")
    body = onnx.helper.make_graph([onnx.helper.make_node("D", ["x"], ["u"], domain="f")], "b", [], [])
    source.functions[0].attribute_proto.append(onnx.helper.make_attribute("k", body))
    with pytest.raises(ModelError, match="function 'D' calls itself"):
        graph_proto.inline(source)


@pytest.mark.parametrize(("opset", "own"), [(18, 17), (17, 18), (13, 21)])
def test_functions_of_another_opset_are_inlined_where_it_means_the_same(opset: int, own: int) -> None:
    source = model("y = f.D (x)", LEAKY, opset=opset, own=own)
    result = conversion.round_trip(source)
    assert not result.functions and same(source, result)


@pytest.mark.parametrize(("opset", "own", "call"), [(13, 12, "Softmax (x)"), (18, 20, "Gelu (x)")])
def test_functions_of_another_opset_stay_where_it_means_something_else(
    opset: int, own: int, call: str
) -> None:
    source = model("y = f.D (x)", f"D (x) => (y) {{ y = {call} }}", opset=opset, own=own)
    assert len(graph_proto.inline(source).functions) == 1
