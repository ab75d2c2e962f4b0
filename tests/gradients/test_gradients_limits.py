"""What a gradient is known of, what it is zero for, and what passes through as if it were the identity.

Oracle: gradients worked out by hand, which float32 computes exactly, and :mod:`tests.helpers.gradient_check`.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import pytest

import ops
from tests.helpers.gradient_check import check, with_gradients
from transforms.gradients.backward import Gradients, add_gradients
from transforms.graph import walk
from transforms.model import graph_proto

X = np.array([0.75, -1.5, 2.25], np.float32)
SEED = np.array([1.0, 2.0, -4.0], np.float32)


def _graph(text: str, opset: int = 20, domains: str = "") -> gs.Graph:
    head = f'<ir_version: 8, opset_import: ["": {opset}{domains}]> main '
    model = onnx.parser.parse_model(head + text)
    onnx.checker.check_model(model, full_check=not domains)
    return graph_proto.import_model(model)


def _found(text: str, *wanted: str, opset: int = 20) -> Gradients:
    return add_gradients(_graph(text, opset), {"y": "seed"}, wanted or ["x"])


def _gradient(text: str, *, name: str = "x") -> np.ndarray:
    model, found = with_gradients(_graph(text), [name])
    return model.run({"x": X, "seed_y": SEED})[found.names[name]]


ONE_WAY_BLOCKED = """(float[3] x) => (float[3] y, float[3] z) <int64 axis = {0}> {
    a = Tanh(x) b = CumSum(a, axis) c = Exp(b) y = Add(c, a) z = Neg(a) d = Exp(c) }"""


def test_gradient_is_unknown_where_one_of_two_ways_has_no_rule() -> None:
    found = _found(ONE_WAY_BLOCKED, "x", "a", "b", "c", "d")
    assert found.names.keys() == {"b", "c"} and found.zero == {"d"}
    assert found.unknown == dict.fromkeys(["x", "a"], "CumSum 'b' has no rule")


def test_gradient_is_known_where_the_way_without_a_rule_leads_to_no_seed() -> None:
    found = add_gradients(_graph(ONE_WAY_BLOCKED), {"z": "seed"}, ["x", "b"])
    assert found.names.keys() == {"x"} and found.zero == {"b"} and not found.unknown


def test_no_node_is_left_whose_result_nobody_needs() -> None:
    graph = _graph(ONE_WAY_BLOCKED)
    before = len(graph.nodes)
    found = add_gradients(graph, {"y": "seed"}, ["x"])
    assert "x" in found.unknown and len(graph.nodes) == before
    assert all(user in graph.nodes for node in graph.nodes for t in node.outputs for user in t.outputs)


@pytest.mark.parametrize(
    "text",
    [
        "(float[3] x) => (float[1] y) { s = Shape(x) y = Cast <to = 1> (s) }",
        "(float[3] x) => (float[3] y) { i = Cast <to = 6> (x) y = Cast <to = 1> (i) }",
        "(float[3] x) => (float[3] y) <float z = {0}> { c = Less(x, z) y = Cast <to = 1> (c) }",
        "(float[3] x) => (float[1] y) { i = ArgMax(x) y = Cast <to = 1> (i) }",
        "(float[3] x) => (float[3] y) { a = Round(x) y = Exp(a) }",
        "(float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { a = Exp(x) y = Neg(w) }",
    ],
)
def test_gradient_is_zero_where_the_output_does_not_change_with_the_input(text: str) -> None:
    found = _found(text)
    assert found.zero == {"x"} and not found.names and not found.unknown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[3] x, float[3] e) => (float[3] y) { y = Pow(x, e) }", "its exponent is computed"),
        ("(float[3] e, float[3] x) => (float[3] y) { y = Pow(e, x) }", "its input 1 is computed"),
        ("(float[1,1,3,3] x) => (float[1,1,6,6] y) <float[4] s = {1, 1, 2, 2}> "
         """{ y = Resize <mode = "linear"> (x, , s) }""", "mode 'linear' has no rule"),
        ("(float[1,1,3,3] w, float[1,1,2,2] x) => (float[1,1,2,2] y) { y = Conv(w, x) }", "input 1 is "),
        ("(float[3] x) => (float[3] y) { h = Cast <to = 10> (x) t = Tanh(h) y = Cast <to = 1> (t) }",
         "'h' is not known to be float32"),
        ("(float[3] x) => (float[3] y) { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
         "DequantizeLinear 'y': its input 1 is computed"),
        ("(float[1,1,4] x) => (float[1,1,2] y) <float s = {0.1}, int8 z = {0}> { q = QuantizeLinear(x, s, z) "
         "p = MaxPool <kernel_shape = [3]> (q) y = DequantizeLinear(p, s, z) }",
         "'q' is not known to be float32"),
        ("(float[3] x, bool c) => (float[3] y) { a = Tanh(x) y = If (c) "
         "<then_branch = t () => (float[3] p) { p = Exp(a) }, "
         "else_branch = e () => (float[3] q) { q = Neg(a) }> }", "If 'y' has no rule"),
        ("(float[3] x) => (float[3] y) <float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }", "training"),
    ],
)  # fmt: skip
def test_gradient_is_unknown_and_says_why(text: str, reason: str) -> None:
    found = _found(text)
    assert reason in found.unknown["x"] and not found.names and not found.zero


ROUNDINGS = {
    "bfloat16": "b = Cast <to = 16> (a) c = Cast <to = 1> (b)",
    "float16": "b = Cast <to = 10> (a) c = Cast <to = 1> (b)",
    "int8": "b = QuantizeLinear(a, scale, zero) c = DequantizeLinear(b, scale, zero)",
    "bfp16": "c = ai.onnx.contrib.BFPQuantizeDequantize <bit_width = 16> (a)",
    "mxint8": """c = ai.onnx.contrib.MXQuantizeDequantize <element_dtype = "int8"> (a)""",
}


@pytest.mark.parametrize("format", ROUNDINGS)
def test_roundings_count_as_the_identity(format: str) -> None:
    rounded = ROUNDINGS[format]
    text = f"""(float[3] x) => (float[3] y) <float[3] w = {{1.5, -2, 0.5}}, float scale = {{0.5}},
        int8 zero = {{3}}> {{ a = Neg(x) {rounded} y = Mul(c, w) }}"""
    graph = _graph(text, domains=f', "{ops.DOMAIN}": 1')
    for tensor in (tensor for node in graph.nodes for tensor in node.outputs if tensor.name == "c"):
        tensor.dtype = np.dtype(np.float32)
    model, found = with_gradients(graph, ["x"])
    gradient = model.run({"x": X, "seed_y": SEED})[found.names["x"]]
    np.testing.assert_array_equal(gradient, -SEED * np.array([1.5, -2, 0.5], np.float32))


def test_gradient_of_a_tensor_in_the_middle_is_that_of_all_that_follows_it() -> None:
    text = "(float[3] x) => (float[3] y) { a = Neg(x) b = Add(a, a) c = Mul(a, x) y = Sub(b, c) }"
    np.testing.assert_array_equal(_gradient(text, name="a"), SEED * (2 - X))
    np.testing.assert_array_equal(_gradient(text), SEED * (2 * X - 2))


def test_gradient_of_an_output_is_its_seed_and_what_comes_back_to_it() -> None:
    found = add_gradients(_graph("(float[3] x) => (float[3] y) { y = Exp(x) }"), {"y": "seed"}, ["y"])
    assert found.names == {"y": "seed"}
    graph = _graph("(float[3] x) => (float[3] y, float[3] z) { y = Identity(x) z = Neg(y) }")
    model, both = with_gradients(graph, ["y"])
    result = model.run({"x": X, "seed_y": SEED, "seed_z": 3 * SEED})[both.names["y"]]
    np.testing.assert_array_equal(result, SEED - 3 * SEED)


def test_a_second_call_adds_nodes_of_other_names() -> None:
    graph = _graph("(float[3] x) => (float[3] y) { y = Tanh(x) }")
    add_gradients(graph, {"y": "first"}, ["x"])
    add_gradients(graph, {"y": "second"}, ["x"])
    names = [node.name for node in graph.nodes if node.name]
    made = [tensor.name for node in graph.nodes for tensor in node.outputs]
    assert len(set(names)) == len(names) and len(set(made)) == len(made) == 7
    assert {tensor.name for tensor in graph.inputs} == {"x", "first", "second"}
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)


OLD_FORMS = {
    "mean": "(float[2,3] x) => (float[2,1] y) { y = ReduceMean <axes = [1]> (x) }",
    "max": "(float[2,3] x) => (float[3] y) { y = ReduceMax <axes = [-2], keepdims = 0> (x) }",
    "instance": """(float[1,2,3] x) => (float[1,2,3] y) <float[2] s = {1.5, 2}, float[2] b = {0, 1}> {
        y = InstanceNormalization(x, s, b) }""",
    "split": "(float[2,4] x) => (float[2,2] y, float[2,2] z) { a, z = Split <axis = 1> (x) y = Tanh(a) }",
    "pool": "(float[1,1,4] x) => (float[1,1,2] y) { y = MaxPool <kernel_shape = [2], strides = [2]> (x) }",
    "gather": "(float[4] x) => (float[2] y) <int64[2] i = {3, 0}> { y = Gather(x, i) }",
    "softmax": "(float[2,3] x) => (float[2,3] y) { y = Softmax(x) }",
}


@pytest.mark.parametrize("case", OLD_FORMS)
def test_forms_of_opset_13_equal_central_differences(case: str) -> None:
    model = graph_proto.export_model(_graph(OLD_FORMS[case], opset=13))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    found = check(model, {"x": (np.arange(np.prod(shape), dtype=np.float32) % 5 / 2).reshape(shape)}, ["x"])
    assert found.names.keys() == {"x"}


def test_overlapping_windows_need_a_scatter_that_adds() -> None:
    text = "(float[1,1,4] x) => (float[1,1,3] y) { y = MaxPool <kernel_shape = [2]> (x) }"
    assert "it needs opset 16, the graph has 15" in _found(text, opset=15).unknown["x"]
    assert not _found(text, opset=16).unknown


@pytest.mark.parametrize(
    ("outputs", "wanted", "opset", "message"),
    [
        ({"y": "seed"}, ["x"], 12, "gradients need opset 13, the graph has 12"),
        ({"y": "seed"}, ["nothing"], 20, "'nothing' is neither an input nor computed in the main graph"),
        ({"y": "seed"}, ["w"], 20, "'w' is neither an input nor computed in the main graph"),
        ({"a": "seed"}, ["x"], 20, "'a' is not an output of the graph"),
        ({"i": "seed"}, ["x"], 20, "'i' is not known to be float32: it has no gradient"),
        ({"y": "a"}, ["x"], 20, "the name 'a' for the seed of 'y' is taken"),
        ({"y": "seed", "z": "seed"}, ["x"], 20, "two outputs have seeds of the same name"),
    ],
)
def test_refuses_what_does_not_fit_and_leaves_the_graph(
    outputs: dict[str, str], wanted: list[str], opset: int, message: str
) -> None:
    text = """(float[3] x) => (float[3] y, float[3] z, int64[1] i) <float[3] w = {1, 2, 3}> {
        a = Mul(x, w) y = Neg(a) z = Exp(a) i = Shape(x) }"""
    graph = _graph(text, opset)
    names = set(graph.tensors())
    with pytest.raises(ValueError, match=f"^{message}$"):
        add_gradients(graph, outputs, wanted)
    assert set(graph.tensors()) == names and len(list(walk.nodes(graph))) == 4
