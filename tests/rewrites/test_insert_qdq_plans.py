"""Oracles: the network computed with NumPy on numbers chosen so that every sum is exact in float32; NumPy's
rounding of weights and biases; ops.reference for blocks.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.helpers import conversion, plans, quantization
from tests.helpers.quantization import (
    EXTENDED,
    NET,
    SHAPES,
    inputs,
    node,
    on_grid,
    ops_used,
    opset,
    random,
    scheme,
    source,
    stored,
    twin,
    write,
    write_graph,
)
from transforms.dual_quant_nodes import dual_quant_nodes
from transforms.insert_qdq import insert_qdq
from transforms.model import graph_proto
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset

STANDARD = {("", "QuantizeLinear"), ("", "DequantizeLinear")}

LAYERS = {
    "Conv": ("(float[2,4,5,5] x) => (float[A,B,C,D] y) { y = Conv(x, w, b) }", (6, 4, 3, 3), 0, 0),
    "grouped Conv": (
        "(float[2,4,5,5] x) => (float[A,B,C,D] y) { y = Conv <group = 2> (x, w, b) }",
        (6, 2, 3, 3),
        0,
        0,
    ),
    "ConvTranspose": (
        "(float[2,4,5,5] x) => (float[A,B,C,D] y) { y = ConvTranspose(x, w, b) }",
        (4, 6, 3, 3),
        1,
        0,
    ),
    "Gemm": ("(float[2,4] x) => (float[A,B] y) { y = Gemm(x, w, b) }", (4, 6), 1, 0),
    "Gemm transB": ("(float[2,4] x) => (float[A,B] y) { y = Gemm <transB = 1> (x, w, b) }", (6, 4), 0, 0),
    "Gemm of a row": ("(float[2,4] x) => (float[A,B] y) { y = Gemm(x, w, b1) }", (4, 6), 1, 1),
}
"""Text, shape of the weight, axis of its output channels, axis of the bias; the bias has 6 channels."""


def whole(shape: tuple[int, ...], unit: float | NDArray[np.floating], seed: int = 0) -> NDArray[np.float32]:
    """Return integers times a unit, which may differ along an axis; in every row 127 is the largest."""
    random = np.random.default_rng(seed)
    values = random.integers(-126, 127, shape)
    values[..., :1, :1] = 127
    if len(shape) == 2:
        values[:, :1] = values[:1, :] = 127
    return (values * np.asarray(unit)).astype(np.float32)


def convolve(x: NDArray[np.float32], kernel: NDArray[np.float32]) -> NDArray[np.float32]:
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[2:], axis=(2, 3))
    return np.einsum("bchwij,ocij->bohw", windows, kernel).astype(np.float32)


def pool(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x.reshape(*x.shape[:2], 2, 2, 2, 2).max((3, 5))


# A small network, computed by hand


@pytest.mark.parametrize("per_channel", (False, True))
@pytest.mark.parametrize(
    ("name", "steps", "zero_point"),
    (
        ("A8W8", (2.0**-4, 2.0**-3, 2.0**-2), 0),
        ("A16W8", (2.0**-8, 2.0**-9, 2.0**-8), 0),
        ("U8S8", (2.0**-4, 2.0**-3, 2.0**-2), 100),
        ("U16S8", (2.0**-8, 2.0**-9, 2.0**-8), 30000),
    ),
)
def test_a_network_computes_what_numpy_computes(
    name: str, steps: tuple[float, float, float], zero_point: int, per_channel: bool
) -> None:
    """Operands are small integers times powers of two: no sum needs more than the 24 bits of float32."""
    format = preset(name).activation
    lowest, highest = quantization.LIMITS[format]
    spread = np.array([1, 0.5, 0.25, 2]) if per_channel else np.ones(4)
    k = whole((4, 3, 3, 3), 2.0**-7 * spread[:, None, None, None])
    w = whole((5, 16), 2.0**-7, seed=2)
    b, d = random(4), random(5)
    ends = {
        tensor: ((lowest - zero_point) * step, (highest - zero_point) * step)
        for tensor, step in zip("xry", steps, strict=True)
    }
    if not zero_point:
        ends = {tensor: (-high, high) for tensor, (_, high) in ends.items()}
    chosen = scheme(name, per_channel=per_channel)
    model = write(NET, {"k": k, "w": w, "b": b, "d": d}, chosen, ends)

    x = random(2, 3, 6, 6, seed=3)
    first, second, third = steps
    kernel_step = 2.0**-7 * spread
    rounded = on_grid(x, first, format, zero_point)
    bias = np.rint(b / (first * kernel_step)) * first * kernel_step
    hidden = np.maximum(convolve(rounded, k) + bias.reshape(1, -1, 1, 1).astype(np.float32), 0)
    flat = pool(on_grid(hidden, second, format, zero_point)).reshape(2, 16)
    result = flat @ w.T + np.rint(d / (second * 2.0**-7)) * second * 2.0**-7
    assert np.array_equal(conversion.run(model, {"x": x})["y"], on_grid(result, third, format, zero_point))
    assert len(np.unique(on_grid(result, third, format, zero_point))) > 5
    assert ops_used(model) == STANDARD | {("", op) for op in ("Conv", "Relu", "MaxPool", "Flatten", "Gemm")}
    assert opset(model) == (21 if "16" in name else 18)
    assert [one.domain for one in model.opset_import] == [""]


def test_moves_have_the_scale_of_their_input_and_are_quantized_behind() -> None:
    weights = SHAPES
    model = write(NET, weights, scheme("A8W8"), {"x": (-1, 1), "r": (0, 2), "y": (-3, 3)})
    for reader in ("p", "f", "y_raw"):
        dequantize = source(model, node(model, reader), 0)
        assert dequantize.op_type == "DequantizeLinear"
        assert stored(model)[dequantize.input[1]] == np.float32(2 / 127)


# Weights and biases as they are stored


@pytest.mark.parametrize("per_channel", (False, True))
@pytest.mark.parametrize("format", ("int8", "int4"))
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_and_biases_are_numpys_integers(kind: str, format: str, per_channel: bool) -> None:
    text, shape, axis, bias_axis = LAYERS[kind]
    w, b = random(*shape), random(6, seed=4)
    if bias_axis:
        text, b = text.replace("b1", "b"), b[None]
    chosen = scheme("A8W8", weight=format, per_channel=per_channel)
    model = write(text, {"w": w, "b": b}, chosen, {"x": (-3, 2), "y": (-9, 9)})
    layer = node(model, "y_raw")
    others = tuple(i for i in range(w.ndim) if i != axis)
    highest = quantization.LIMITS[format][1]
    scale = (np.abs(w).max(others if per_channel else None) / np.float32(highest)).astype(np.float32)
    along = [-1 if i == axis else 1 for i in range(w.ndim)] if per_channel else [1] * w.ndim

    dequantize = source(model, layer, 1)
    assert (dequantize.domain, dequantize.op_type) == ("", "DequantizeLinear")
    values, found, zero_points = inputs(model, dequantize)
    assert np.array_equal(found, scale) and found.dtype == np.float32
    assert values.dtype == zero_points.dtype == np.dtype(getattr(ml_dtypes, format, format))
    assert not zero_points.astype(int).any() and zero_points.shape == scale.shape
    assert np.array_equal(values.astype(int), np.rint(w / scale.reshape(along)).astype(int))
    assert quantization.axis(dequantize) == (axis if per_channel else None)

    dequantize = source(model, layer, 2)
    values, found, zero_points = inputs(model, dequantize)
    assert (dequantize.domain, dequantize.op_type) == ("", "DequantizeLinear")
    assert np.array_equal(found, np.float32(3 / 127) * scale) and found.dtype == np.float32
    assert values.dtype == zero_points.dtype == np.int32 and not zero_points.any()
    assert np.array_equal(values, np.rint(b / found)) and values.shape == b.shape
    assert quantization.axis(dequantize) == (bias_axis if per_channel else None)

    x = random(*[2, 4, 5, 5][: w.ndim], seed=5)
    assert np.isfinite(conversion.run(model, {"x": x})["y"]).all()


def test_a_matrix_has_a_scale_for_each_column() -> None:
    text = "(float[2,4] x) => (float[2,6] y) { y = MatMul(x, w) }"
    w = random(4, 6)
    model = write(text, {"w": w}, scheme("A8W8", per_channel=True), {"x": (-1, 1), "y": (-4, 4)})
    dequantize = source(model, node(model, "y_raw"), 1)
    assert np.array_equal(inputs(model, dequantize)[1], np.abs(w).max(0) / np.float32(127))
    assert quantization.axis(dequantize) == 1
    x = random(2, 4, seed=6)
    expected = on_grid(on_grid(x, 1 / 127) @ on_grid(w, np.abs(w).max(0) / np.float32(127)), 4 / 127)
    # A sum of four float32 products may round the other way: by one step of the output at most.
    assert np.abs(conversion.run(model, {"x": x})["y"] - expected).max() <= 4 / 127 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("shape", "per_channel", "is_integer"),
    (
        ((6,), False, True),
        ((1, 6), False, True),
        ((), False, True),
        ((3, 6), False, True),
        ((3, 1), False, True),
        ((6,), True, True),
        ((1, 6), True, True),
        ((), True, False),
        ((1,), True, False),
        ((3, 1), True, False),
        ((3, 6), True, False),
    ),
)
def test_bias_of_gemm_of_any_shape(shape: tuple[int, ...], per_channel: bool, is_integer: bool) -> None:
    """A scale per channel needs one number per channel; any other bias stays float32."""
    text = "(float[3,4] x) => (float[3,6] y) { y = Gemm(x, w, b) }"
    weights = {"w": whole((4, 6), 2.0**-7), "b": random(*shape, seed=7)}
    ends = {"x": (-127 / 16, 127 / 16), "y": (-127 / 4, 127 / 4)}
    model = write(text, weights, scheme("A8W8", per_channel=per_channel), ends)
    gemm = node(model, "y_raw")
    assert (gemm.input[2] == "b") is not is_integer
    x, b, unit = random(3, 4, seed=8), weights["b"], 2.0**-11
    if is_integer:
        b = (np.rint(b / unit) * unit).astype(np.float32)
    result = on_grid(x, 1 / 16) @ weights["w"] + b
    assert np.array_equal(conversion.run(model, {"x": x})["y"], on_grid(result, 1 / 4))


@pytest.mark.parametrize("per_channel", (False, True))
def test_a_bias_beyond_int32_widens_the_scale_of_the_weight(per_channel: bool) -> None:
    text = "(float[1,4] x) => (float[1,3] y) { y = Gemm(x, w, b) }"
    w, b = random(4, 3) / 64, np.array([1e6, -1e-3, 0], np.float32)
    chosen = scheme("A8W8", per_channel=per_channel)
    model = write(text, {"w": w, "b": b}, chosen, {"x": (-1e-3, 1e-3), "y": (-1, 1)})
    gemm = node(model, "y_raw")
    _, scale, _ = inputs(model, source(model, gemm, 1))
    values, bias_scale, _ = inputs(model, source(model, gemm, 2))
    plain = np.abs(w).max(0 if per_channel else None) / np.float32(127)
    assert np.array_equal(bias_scale, np.float32(1e-3 / 127) * scale)
    assert scale.flat[0] > plain.flat[0]
    assert np.array_equal(scale.flat[1:], plain.flat[1:])
    assert 2**31 - 2**14 < values[0] < 2**31 - 1  # as fine as it can be, and not clamped
    found = values * bias_scale.astype(np.float64)
    # The quotient has the 24 bits of float32 before it is rounded to an integer.
    assert (np.abs(found - b) <= bias_scale / 2 + np.abs(b) * 2.0**-23).all()


def test_the_widest_bias_of_all_readers_counts() -> None:
    text = """(float[1,4] x) => (float[1,3] y, float[1,3] z) {
        y = Gemm(x, w, b) z = Gemm(x, w, d) }"""
    weights = {"w": random(4, 3) / 64, "b": np.full(3, 1e6, np.float32), "d": np.full(3, 5e6, np.float32)}
    ranges = {"x": (-1e-3, 1e-3), "y": (-1, 1), "z": (-1, 1)}
    model = write(text, weights, scheme("A8W8"), ranges)
    biases = [inputs(model, source(model, node(model, name), 2)) for name in ("y_raw", "z_raw")]
    assert biases[0][1] == biases[1][1]
    assert biases[1][0].max() > 2**31 - 2**14 and abs(biases[1][0][0] / biases[0][0][0] - 5) < 1e-5


def test_a_shared_bias_is_stored_for_each_reader() -> None:
    text = """(float[1,4] x) => (float[1,4] y) { a = Gemm(x, v, b) y = Gemm(a, w, b) }"""
    b = random(4)
    weights = {"v": random(4, 4), "w": random(4, 4, seed=2), "b": b}
    model = write(text, weights, scheme("A8W8"), {"x": (-1, 1), "a": (-2, 2), "y": (-3, 3)})
    for reader, step, weight in (("a", 1 / 127, "v"), ("y_raw", 2 / 127, "w")):
        values, scale, _ = inputs(model, source(model, node(model, reader), 2))
        step_of_weight = np.abs(weights[weight]).max() / np.float32(127)
        assert scale == np.float32(step) * step_of_weight
        assert np.array_equal(values, np.rint(b / scale))
    assert "b" not in stored(model)


@pytest.mark.parametrize("name", ("A8W8", "XINT8", "W4A8", "BF16", "FP16", "MX9", "MXFP4E2M1", "INT32"))
def test_weights_with_nodes_are_float_and_give_the_same_numbers(name: str) -> None:
    weights = {"k": random(4, 3, 3, 3), "b": (4,), "w": random(5, 16), "d": (5,)}
    ranges = dict.fromkeys(("x", "r", "y"), (-2.0, 2.0))
    lean, full = (write(NET, weights, scheme(name, keep_weight_nodes=keep), ranges) for keep in (False, True))
    for weight in ("k", "w"):
        assert np.array_equal(stored(full)[weight], weights[weight])
        assert weight not in stored(lean) or not np.array_equal(stored(lean)[weight], weights[weight])
    assert len(full.graph.node) >= len(lean.graph.node) + 2
    feeds = {"x": random(2, 3, 6, 6)}
    assert conversion.same(conversion.run(lean, feeds), conversion.run(full, feeds))


# One tensor, several readers


def test_a_weight_of_layers_that_want_it_differently() -> None:
    text = """(float[8,8] x) => (float[8,8] y, float[8,8] z, float[8,8] v) {
        y = MatMul(x, w) z = Gemm <transB = 1> (x, w) v = Neg(w) }"""
    w = random(8, 8)
    model = write(text, {"w": w}, scheme("MX9", exclude_op_types=("Neg",)))
    known = stored(model)
    assert np.array_equal(known[node(model, "v").input[0]], w) and node(model, "v").input[0] == "w"
    assert np.array_equal(known[node(model, "y").input[1]], twin(w, "mx9", 0))
    assert np.array_equal(known[node(model, "z").input[1]], twin(w, "mx9", 1))
    assert sum(array.size == 64 for array in known.values()) == 3


def test_a_weight_that_is_also_a_factor_is_stored_once() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { a = MatMul(x, w) y = Mul(a, w) }"
    model = write(text, {"w": (4, 4)}, scheme("A8W8"), dict.fromkeys("xay", (-2.0, 2.0)))
    assert node(model, "a").input[1] == node(model, "y_raw").input[1]
    assert sum(array.size == 16 for array in stored(model).values()) == 1


def test_a_tensor_is_put_on_a_grid_once_for_all_readers() -> None:
    text = "(float[2,8] x) => (float[2,6] y, float[2,6] z) { y = MatMul(x, v) z = MatMul(x, w) }"
    weights = {"v": (8, 6), "w": (8, 6)}
    model = write(text, weights, scheme("MX9"))
    assert node(model, "y").input[0] == node(model, "z").input[0]
    assert [n.op_type for n in model.graph.node] == ["BFPQuantizeDequantize", "MatMul", "MatMul"]


def test_an_output_keeps_its_name_for_what_is_rounded() -> None:
    text = """(float[2,4] x) => (float[2,6] a, float[2,6] y, float[2,6] z) {
        a = MatMul(x, v) y = MatMul(a, w) z = Neg(a) }"""
    chosen = scheme("A8W8", exclude_op_types=("Neg",))
    weights = {"v": random(4, 6), "w": random(6, 6)}
    model = write(text, weights, chosen, {"x": (-2, 2), "a": (-3, 3), "y": (-4, 4)})
    found = conversion.run(model, {"x": random(2, 4)})
    assert np.array_equal(on_grid(found["a"], 3 / 127), found["a"])
    assert node(model, "y_raw").input[0] == "a"
    assert node(model, "z").input[0] == "a_raw" and not np.array_equal(-found["z"], found["a"])
    assert [value.name for value in model.graph.output] == ["a", "y", "z"]


def test_grids_one_after_another() -> None:
    text = "(float[2,4] x) => (float[2,6] y) { a = MatMul(x, v) y = MatMul(a, w) }"
    graph = plans.graph(text, {"v": (4, 6), "w": (6, 6)})
    graph.nodes[1].name = "last"
    planned = QuantizationPlan(graph, scheme("BF16", layers={"last": "mx9"}))
    assert dual_quant_nodes(planned) > 0
    insert_qdq(planned)
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    at, names = next(one for one in model.graph.node if one.name == "last"), []
    for _ in range(4):
        at = source(model, at, 0)
        names.append(at.op_type)
    assert names == ["BFPQuantizeDequantize", *EXTENDED[::-1], "MatMul"]


def test_an_output_whose_reader_wants_another_format() -> None:
    text = "(float[2,4] x) => (float[2,8] a, float[2,6] y) { a = MatMul(x, v) y = MatMul(a, w) }"
    graph = plans.graph(text, {"v": (4, 8), "w": (8, 6)})
    graph.nodes[1].name = "last"
    ranges = {"x": (-1.0, 1.0), "a": (-3.0, 3.0)}
    model = write_graph(graph, scheme("A8W8", layers={"last": "mx9"}), ranges)
    assert node(model, "a").op_type == "DequantizeLinear"
    blocks = source(model, node(model, "y"), 0)
    assert (blocks.op_type, blocks.input[0]) == ("BFPQuantizeDequantize", "a_raw")


def test_what_two_chains_of_grids_have_in_common_is_written_once() -> None:
    text = """(float[2,4] x) => (float[2,6] y, float[2,6] z) {
        a = MatMul(x, v) y = MatMul(a, w) z = MatMul(a, w) }"""
    graph = plans.graph(text, {"v": (4, 8), "w": (8, 6)})
    graph.nodes[1].name, graph.nodes[2].name = "second", "third"
    planned = QuantizationPlan(graph, scheme("BF16", layers={"second": "mx9", "third": "mxint8"}))
    assert dual_quant_nodes(planned) > 0
    insert_qdq(planned)
    model = graph_proto.export_model(graph)
    blocks = [source(model, one, 0) for one in model.graph.node if one.name in ("second", "third")]
    assert {one.op_type for one in blocks} == {"BFPQuantizeDequantize", "MXQuantizeDequantize"}
    assert blocks[0].input[0] == blocks[1].input[0] == "a_dequantized"
    assert sum("a" in one.input for one in model.graph.node) == 1


# Bodies and order


def test_nodes_in_bodies_stand_where_they_are_used() -> None:
    text = """(float[2,8] x, bool c) => (float[2,8] y) { a = Tanh(x)
        y = If (c) <then_branch = t () => (float[2,8] p) { p = MatMul(a, v) },
                    else_branch = e () => (float[2,8] q) { b = Exp(a) q = MatMul(b, v) }> }"""
    model = write(text, {"v": random(8, 8)}, scheme("MX9"))
    assert [n.op_type for n in model.graph.node] == ["Tanh", "BFPQuantizeDequantize", "If"]
    branches = {a.name: [n.op_type for n in a.g.node] for a in model.graph.node[-1].attribute}
    assert branches == {
        "then_branch": ["MatMul"],
        "else_branch": ["Exp", "BFPQuantizeDequantize", "MatMul"],
    }
    plain = plans.model(text, {"v": random(8, 8)})
    for choice in (True, False):
        feeds = {"x": random(2, 8), "c": np.array(choice)}
        exact, found = (conversion.run(one, feeds)["y"] for one in (plain, model))
        assert 0 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_the_number_of_tensors_is_returned_and_nothing_is_left_for_a_second_plan() -> None:
    for name in ("A8W8", "XINT8", "MX9", "BF16", "BF16_BFP16", "INT32"):
        graph = plans.graph(NET, SHAPES)
        planned = QuantizationPlan(graph, preset(name))
        tensors = {id(q.tensor) for q in planned.quantizations}
        ranges = quantization.Given(dict.fromkeys(("x", "r", "y"), (-1.0, 1.0)))
        assert insert_qdq(planned, ranges) == len(tensors)
        again = QuantizationPlan(graph, preset(name))
        left = [q for q in again.quantizations if not q.steps[0].format.block > 1]
        assert not left
        assert insert_qdq(again, ranges) == 0


def test_a_tensor_without_range_is_an_error() -> None:
    graph = plans.graph("(float[2,4] x) => (float[2,6] y) { y = MatMul(x, w) }", {"w": (4, 6)})
    planned = QuantizationPlan(graph, preset("A8W8"))
    with pytest.raises(ValueError, match=r"^tensor 'x' needs a range for int8: calibrate first$"):
        insert_qdq(planned)
    with pytest.raises(ValueError, match=r"^tensor 'y' has no range$"):
        insert_qdq(planned, quantization.Given({"x": (0, 1)}))


@pytest.mark.parametrize("option", ({"domain": "com.amd.quark"}, {"exclude": None}, {"keep_io_types": False}))
def test_what_the_scheme_decides_is_no_option(option: dict[str, Any]) -> None:
    """Domain, exclusions and types of inputs are in the plan: no argument beside it is ignored in silence."""
    graph = plans.graph("(float[2,4] x) => (float[2,6] y) { y = MatMul(x, w) }", {"w": (4, 6)})
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        insert_qdq(QuantizationPlan(graph, preset("MX9")), **option)
