"""Oracle: ONNX Runtime on the model before, without its optimizer; all numbers have to stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import ops
from tests.helpers import conversion
from tests.helpers.spread import spread
from transforms import model_io
from transforms.fold_relu import fold_relu
from transforms.graph import walk
from transforms.model import graph_proto

INF = float("inf")


def build(nodes: str, constants: str, *, opset: int = 21, outputs: str = "int8[N,4] y") -> onnx.ModelProto:
    """Return a model of ``x`` ``[N, 4]`` in the text form of onnx; ``EXT`` and ``MS`` stand for domains."""
    body = nodes.replace("EXT", ops.DOMAIN).replace("MS", "com.microsoft")
    domains = f'["": {opset}, "{ops.DOMAIN}": 1, "com.microsoft": 1]'
    ends = f"(float[N,4] x) => ({outputs})"
    return onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: {domains}> g {ends} <{constants}> {{ {body} }}"
    )


def numbers(scale: float) -> np.ndarray:
    """Return numbers on, between and far outside of the steps of a scale, infinities and zeros."""
    steps = np.arange(-70000, 70000, 0.5, np.float32) * np.float32(scale)
    near = np.concatenate(
        [steps, np.nextafter(steps, INF, dtype=np.float32), np.nextafter(steps, -INF, dtype=np.float32)]
    )
    rare = np.array([INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38], np.float32)
    return np.concatenate([near, rare]).astype(np.float32).reshape(-1, 4)


def fold(model: onnx.ModelProto, scale: float = 0.1) -> int:
    """Fold twice; assert that the second time changes nothing and no output changes; return the count."""
    onnx.checker.check_model(model, full_check=True)
    graph = model_io.load(model)
    count = fold_relu(graph)
    assert fold_relu(graph) == 0
    folded = graph_proto.export_model(graph)
    onnx.checker.check_model(folded, full_check=True)
    left = sum(node.op in ("Relu", "Clip") for node in walk.nodes(graph))
    assert left == sum(node.op_type in ("Relu", "Clip") for node in model.graph.node) - count
    feeds = {"x": numbers(scale)}
    assert conversion.same(conversion.run(model, feeds), conversion.run(folded, feeds))
    return count


@pytest.mark.parametrize("scale", (0.1, 2.0**-7, 1e-3, 3.0))
@pytest.mark.parametrize(
    ("element", "zero", "expected"),
    (
        ("uint8", 0, 1),
        ("uint8", 1, 0),
        ("int8", -128, 1),
        ("int8", -127, 0),
        ("int8", 0, 0),
        ("uint16", 0, 1),
        ("int16", -32768, 1),
        ("int16", 0, 0),
    ),
)
@pytest.mark.parametrize(
    "operator", spread(("QuantizeLinear", "MS.QuantizeLinear", "EXT.ExtendedQuantizeLinear"), of=2)
)
def test_relu_goes_where_zero_is_the_least_integer(
    operator: str, element: str, zero: int, expected: int, scale: float
) -> None:
    constants = f"float s = {{{scale}}}, {element} z = {{{zero}}}, float[N,4] a"
    model = build(f"a = Relu(x) y = {operator}(a, s, z)", constants, outputs=f"{element}[N,4] y")
    assert fold(model, scale) == expected


@pytest.mark.parametrize(
    ("element", "zero", "expected"), (("uint32", 0, 1), ("int32", 0, 0), ("int32", -(2**31), 1))
)
def test_integers_of_32_bits(element: str, zero: int, expected: int) -> None:
    constants = f"float s = {{1e-6}}, {element} z = {{{zero}}}"
    model = build(
        "a = Relu(x) y = EXT.ExtendedQuantizeLinear(a, s, z)", constants, outputs=f"{element}[N,4] y"
    )
    assert fold(model) == expected


def test_relu_of_a_layer_quantized_per_channel() -> None:
    """One channel whose least integer is not zero keeps the Relu."""
    for last, expected in ((0, 1), (1, 0)):
        constants = f"float[4] s = {{0.1, 1, 3, 0.01}}, uint8[4] z = {{0, 0, 0, {last}}}"
        text = "a = Relu(x) y = QuantizeLinear <axis = 1> (a, s, z)"
        assert fold(build(text, constants, outputs="uint8[N,4] y")) == expected


def test_zero_point_left_out_is_an_unsigned_zero() -> None:
    assert fold(build("a = Relu(x) y = QuantizeLinear(a, s)", "float s = {0.1}", outputs="uint8[N,4] y")) == 1
    typed = "a = Relu(x) y = QuantizeLinear <output_dtype = 3> (a, s)"  # int8
    assert fold(build(typed, "float s = {0.1}")) == 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    (
        (-12.8, 12.7, 1),
        (-13, 13, 1),
        (-12.75, 12.65, 0),  # -127.5 rounds to the even -128, 126.5 to the even 126
        (-12.76, 12.66, 1),  # what lies beyond rounds to -128 and 127
        (-12.7, 12.7, 0),
        (-12.8, 12.6, 0),
        (0, 12.7, 0),
        (-1e30, 1e30, 1),
        (5, -5, 0),  # bounds that cross make a constant
    ),
)
def test_clip_goes_where_its_bounds_are_the_ends_of_the_range(low: float, high: float, expected: int) -> None:
    constants = f"float s = {{0.1}}, int8 z = {{0}}, float low = {{{low}}}, float high = {{{high}}}"
    assert fold(build("a = Clip(x, low, high) y = QuantizeLinear(a, s, z)", constants)) == expected


def test_a_negative_scale_turns_the_order_of_numbers_around() -> None:
    """These bounds, which cross, are quantized to the ends of the range and still make a constant."""
    constants = "float s = {-0.1}, int8 z = {0}, float low = {13}, float high = {-13}"
    assert fold(build("a = Clip(x, low, high) y = QuantizeLinear(a, s, z)", constants)) == 0


def test_six_as_upper_bound() -> None:
    """A range that ends at 6 stands for a Relu6; one that ends elsewhere does not."""
    for scale, expected in ((6 / 255, 1), (5.9 / 255, 1), (6.1 / 255, 0)):
        constants = f"float s = {{{scale:.9f}}}, uint8 z = {{0}}, float low = {{0}}, float high = {{6}}"
        text = "a = Clip(x, low, high) y = QuantizeLinear(a, s, z)"
        assert fold(build(text, constants, outputs="uint8[N,4] y"), scale) == expected


def test_one_bound_and_bounds_as_attributes() -> None:
    lower = "a = Clip(x, low) y = QuantizeLinear(a, s, z)"
    upper = "a = Clip(x, , high) y = QuantizeLinear(a, s, z)"
    constants = "float s = {0.1}, uint8 z = {0}, float low = {0}, float high = {1000}"
    assert fold(build(lower, constants, outputs="uint8[N,4] y")) == 1
    assert fold(build(upper, constants, outputs="uint8[N,4] y")) == 1
    old = "a = Clip <min = 0.0, max = 6.0> (x) y = QuantizeLinear(a, s, z)"
    plain = "float s = {0.02}, uint8 z = {0}"
    assert fold(build(old, plain, opset=10, outputs="uint8[N,4] y")) == 1
    assert fold(build(old.replace("6.0", "5.0"), plain, opset=10, outputs="uint8[N,4] y")) == 0


def test_bounds_from_constant_nodes_go_too() -> None:
    text = """low = Constant <value_float = 0.0> () a = Clip(x, low) y = QuantizeLinear(a, s, z)"""
    graph = model_io.load(build(text, "float s = {0.1}, uint8 z = {0}", outputs="uint8[N,4] y"))
    assert fold_relu(graph) == 1
    assert [node.op for node in graph.nodes] == ["QuantizeLinear"]


def test_several_in_a_row_and_several_readers() -> None:
    constants = "float s = {0.1}, uint8 z = {0}, float high = {100}"
    row = "a = Clip(x, , high) b = Relu(a) y = QuantizeLinear(b, s, z)"
    assert fold(build(row, constants, outputs="uint8[N,4] y")) == 2
    both = "a = Relu(x) y = QuantizeLinear(a, s, z) w = MS.QuantizeLinear(a, high, z)"
    assert fold(build(both, constants, outputs="uint8[N,4] y, uint8[N,4] w")) == 1


@pytest.mark.parametrize(
    ("text", "outputs"),
    (
        ("a = Relu(x) y = QuantizeLinear(a, s, z) w = Exp(a)", "uint8[N,4] y, float[N,4] w"),
        ("a = Relu(x) y = QuantizeLinear(a, s, z)", "uint8[N,4] y, float[N,4] a"),
        (
            "a = Relu(x) y = QuantizeLinear(a, s, z) w = QuantizeLinear(a, s, other)",
            "uint8[N,4] y, uint8[N,4] w",
        ),
        ("a = Relu(x) t = Abs(s) y = QuantizeLinear(a, t, z)", "uint8[N,4] y"),
        ("a = Relu(x) y = QuantizeLinear(a, negative, z)", "uint8[N,4] y"),
        ("a = Relu(x) y = EXT.ExtendedQuantizeLinear(a, s, half)", "bfloat16[N,4] y"),
        ("t = Abs(s) a = Clip(x, t) y = QuantizeLinear(a, s, z)", "uint8[N,4] y"),
        ("a = Relu(x) y = Exp(a)", "float[N,4] y"),
    ),
    ids=("reader", "output", "zero point", "scale", "negative", "bfloat16", "bound", "none"),
)
def test_stays_where_something_else_sees_it(text: str, outputs: str) -> None:
    constants = (
        "float s = {0.1}, float negative = {-0.1}, uint8 z = {0}, uint8 other = {1}, bfloat16 half = {0}"
    )
    assert fold_relu(model_io.load(build(text, constants, outputs=outputs))) == 0


def test_in_bodies() -> None:
    """A Relu in a body, and one outside whose result two bodies capture."""
    text = """a = Relu(x) y = If (c) <
        then_branch = t () => (uint8[N,4] p) { b = Relu(x) p = QuantizeLinear(b, s, z) },
        else_branch = e () => (uint8[N,4] q) { q = QuantizeLinear(a, s, z) }>"""
    constants = "float s = {0.1}, uint8 z = {0}, bool c = {0}"
    model = build(text, constants, outputs="uint8[N,4] y")
    graph = model_io.load(model)
    assert fold_relu(graph) == 2
    assert [node.op for node in walk.nodes(graph)] == ["If", "QuantizeLinear", "QuantizeLinear"]
    folded = graph_proto.export_model(graph)
    onnx.checker.check_model(folded, full_check=True)
    feeds = {"x": numbers(0.1)}
    assert conversion.same(conversion.run(model, feeds), conversion.run(folded, feeds))


def test_an_output_of_a_body_stays() -> None:
    text = """a = Relu(x) w = QuantizeLinear(a, s, z) y = If (c) <
        then_branch = t () => (float[N,4] p) { p = Relu(x) o = QuantizeLinear(p, s, z) },
        else_branch = e () => (float[N,4] q) { q = Exp(x) }>"""
    constants = "float s = {0.1}, uint8 z = {0}, bool c = {0}"
    graph = model_io.load(build(text, constants, outputs="uint8[N,4] w, float[N,4] y"))
    assert fold_relu(graph) == 1
    assert [node.op for node in walk.nodes(graph)].count("Relu") == 1
