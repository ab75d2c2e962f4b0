"""Integers with scale and zero point. Oracles: ONNX Runtime's own operators, arithmetic in float64."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import ops
from ops import integers, reference, squared_errors
from ops.integers import dequantize, finite_range, quantize, range_scale, weight_scale
from tests.helpers.number_patterns import PATTERNS, make_pattern

ONNX_TYPES = {
    "int2": TensorProto.INT2,
    "uint2": TensorProto.UINT2,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
}
INTEGERS = [*ONNX_TYPES, "int32", "uint32"]
FLOAT32 = np.finfo(np.float32)
RNG = np.random.default_rng(11)


def make_runtime(nodes: list[Any], inputs: dict[str, int]) -> onnxruntime.InferenceSession:
    values = [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", values, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@cache
def quantizer(name: str, axis: int) -> onnxruntime.InferenceSession:
    """ORT's QuantizeLinear of x; z comes as int32 and y goes as float, which hold all of these types."""
    kind = ONNX_TYPES[name]
    nodes = [
        helper.make_node("Cast", ["z"], ["typed"], to=kind),
        helper.make_node("QuantizeLinear", ["x", "s", "typed"], ["q"], axis=axis),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    return make_runtime(nodes, {"x": TensorProto.FLOAT, "s": TensorProto.FLOAT, "z": TensorProto.INT32})


@cache
def dequantizer(name: str, axis: int) -> onnxruntime.InferenceSession:
    """ORT's DequantizeLinear of integers that come as int32."""
    kind = ONNX_TYPES[name]
    nodes = [
        helper.make_node("Cast", ["q"], ["typed_q"], to=kind),
        helper.make_node("Cast", ["z"], ["typed_z"], to=kind),
        helper.make_node("DequantizeLinear", ["typed_q", "s", "typed_z"], ["y"], axis=axis),
    ]
    return make_runtime(nodes, {"q": TensorProto.INT32, "s": TensorProto.FLOAT, "z": TensorProto.INT32})


def check_against_runtime(x: NDArray[np.float32], scale: Any, zero: Any, name: str, axis: int | None) -> None:
    """Every number as in ONNX Runtime, with two exceptions.

    Its NaN depends on the processor; ours is the zero point. Its 4-bit integers wrap around from 2^31 steps
    on at the odd ends of a run (seen with 1.31); ours saturate.
    """
    row, shape = ops.FORMATS[name], [1] * x.ndim
    feed = {"x": x, "s": np.asarray(scale, np.float32), "z": np.asarray(zero, np.int32)}
    (expected,) = quantizer(name, 0 if axis is None else axis).run(None, feed)
    if axis is not None:
        shape[axis] = -1
    expected[np.isnan(x)] = np.broadcast_to(np.reshape(zero, shape), x.shape)[np.isnan(x)]
    if row.bits < 8:
        limit = np.reshape(feed["s"], shape) * 2.0**31
        expected = np.where(x >= limit, row.highest, np.where(x <= -limit, row.lowest, expected))
    q = quantize(x, scale, zero, name, axis)
    assert q.dtype == row.dtype and q.shape == x.shape
    assert np.array_equal(q.astype(np.float32), expected)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", ONNX_TYPES)
def test_quantize_per_tensor_equals_the_runtime(name: str, pattern: str) -> None:
    x = make_pattern(pattern, (5, 331), np.random.default_rng([ord(c) for c in name + pattern]))
    row = ops.FORMATS[name]
    for scale, zero in [(1.0, 0), (0.37, min(3, row.highest)), (2.0**-6, row.highest), (1e-3, row.lowest)]:
        check_against_runtime(x, np.float32(scale), int(zero), name, None)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("name", ONNX_TYPES)
def test_quantize_per_channel_equals_the_runtime(name: str, axis: int) -> None:
    row, x = ops.FORMATS[name], make_pattern("special", (4, 33, 5), RNG)
    scale = RNG.uniform(0.01, 2, x.shape[axis]).astype(np.float32)
    zero = RNG.integers(int(row.lowest), int(row.highest) + 1, scale.size)
    check_against_runtime(x, scale, zero, name, axis)


@pytest.mark.parametrize("name", ONNX_TYPES)
def test_halves_go_to_even_and_the_ends_saturate(name: str) -> None:
    """Exact by definition, at a scale that is a power of two; also around the ends of the range."""
    row = ops.FORMATS[name]
    around = (row.lowest, row.highest)
    halves = np.concatenate([end + np.arange(-3, 3.5, 0.5) for end in around] + [np.arange(-3, 3.5, 0.5)])
    x = np.concatenate([halves, [np.inf, -np.inf, FLOAT32.max, FLOAT32.min]]).astype(np.float32)
    expected = np.clip(np.rint(x.astype(np.float64)), row.lowest, row.highest)
    assert quantize(x, 1, 0, name).astype(np.float64).tolist() == expected.tolist()
    assert quantize(x * np.float32(0.125), 0.125, 0, name).astype(np.float64).tolist() == expected.tolist()


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ONNX_TYPES)
def test_dequantize_equals_the_runtime(name: str, axis: int | None) -> None:
    row, size = ops.FORMATS[name], 1 if axis is None else (64, 70)[axis]
    q, zero = (
        RNG.integers(int(row.lowest), int(row.highest) + 1, n).astype(np.int32) for n in ((64, 70), size)
    )
    scale = RNG.uniform(1e-3, 2, size).astype(np.float32)
    if axis is None:
        scale, zero = scale[0], zero[0]
    feed = {"q": q, "s": np.asarray(scale), "z": np.asarray(zero)}
    (expected,) = dequantizer(name, axis or 0).run(None, feed)
    y = dequantize(q.astype(row.dtype), scale, zero, axis)
    assert y.dtype == np.float32 and np.array_equal(y.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", ["int32", "uint32"])
def test_wide_integers_equal_the_twin(name: str) -> None:
    """ONNX has no such QuantizeLinear; the twin works in integers of 64 bits."""
    x = make_pattern("wide", (40, 50), RNG)
    scale, zero = np.float32(0.37), np.array(3, name)
    q = quantize(x, scale, zero, name)
    assert np.array_equal(q, reference.quantize_linear(x, scale, zero))
    assert np.array_equal(dequantize(q, scale, zero), reference.dequantize_linear(q, scale, zero))


@pytest.mark.parametrize("name", INTEGERS)
def test_quantize_undoes_dequantize(name: str) -> None:
    """At scales where no rounding of float32 matters, each integer comes back; all of them up to 16 bits."""
    row = ops.FORMATS[name]
    low, high = (-(2**23), 2**23) if row.bits == 32 else (int(row.lowest), int(row.highest))
    q = np.arange(max(low, int(row.lowest)), high + 1, 1 if row.bits < 32 else 997).astype(row.dtype)
    assert np.array_equal(quantize(dequantize(q, 0.25, 1), 0.25, 1, name), q)


@pytest.mark.parametrize(("name", "size"), [("int2", 1), ("uint2", 1), ("int4", 8), ("uint4", 8)])
def test_short_integers_are_those_of_ml_dtypes(name: str, size: int) -> None:
    """The bytes too, which onnx packs two or four in one."""
    row = ops.FORMATS[name]
    numbers = np.arange(int(row.lowest), int(row.highest) + 1)
    expected = numbers.astype(getattr(ml_dtypes, name))
    q = quantize(numbers.astype(np.float32), 1, 0, name)
    assert q.dtype == expected.dtype and q.tobytes() == expected.tobytes()
    tensor = numpy_helper.from_array(q, "q")
    assert tensor.data_type == ONNX_TYPES[name] and len(tensor.raw_data) == size
    assert np.array_equal(numpy_helper.to_array(tensor), q)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", INTEGERS)
def test_narrow_floats_are_widened(name: str, dtype: Any) -> None:
    x = RNG.standard_normal((6, 40)).astype(dtype)
    assert np.array_equal(quantize(x, 0.37, 1, name), quantize(x.astype(np.float32), 0.37, 1, name))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_small_shapes(name: str, shape: tuple[int, ...]) -> None:
    there = min(5, int(ops.FORMATS[name].highest))
    q = quantize(np.full(shape, 2, np.float32), 0.5, 1, name)
    assert q.shape == shape and (q.astype(int) == there).all()
    assert np.array_equal(dequantize(q, 0.5, 1), np.full(shape, (there - 1) / 2, np.float32))
    assert weight_scale(np.zeros(shape, np.float32), name, method="MSE") == 1


def test_memory_layouts() -> None:
    x = RNG.standard_normal((8, 12, 10), np.float32)
    scale = RNG.uniform(0.01, 0.1, 40).astype(np.float32)
    for view in (x.T, x[::-1], x[:, ::2], np.asfortranarray(x)):
        for axis in range(3):
            s = scale[: view.shape[axis]]
            copy = np.ascontiguousarray(view)
            q = quantize(view, s, 0, "int8", axis)
            assert np.array_equal(q, quantize(copy, s, 0, "int8", axis))
            back = np.ascontiguousarray(q.T).T
            assert np.array_equal(dequantize(back, s, 0, axis), dequantize(q, s, 0, axis))
            least = weight_scale(copy, "int4", axis, method="MSE")
            assert np.array_equal(weight_scale(view, "int4", axis, method="MSE"), least)


def test_reads_only() -> None:
    x = make_pattern("special", (40, 50), RNG)
    copy = x.copy()
    x.flags.writeable = False
    q = quantize(x, 0.1, 0, "int4")
    q.flags.writeable = False
    dequantize(q, np.full(40, 0.1, np.float32), 0, 0)
    weight_scale(x, "int8", 0, method="MSE", importance=np.ones(50))
    assert np.array_equal(x.view(np.uint32), copy.view(np.uint32))


@pytest.mark.parametrize("name", INTEGERS)
def test_symmetric_ranges(name: str) -> None:
    """Oracle: the definition in float64, rounded once."""
    row, low, high = ops.FORMATS[name], np.array([-3.0, -1, 2, 0]), np.array([1.0, 5, 7, 0])
    middle = 0 if row.is_signed else 2 ** (int(row.bits) - 1)
    scale, zero = range_scale(low, high, name, symmetric=True)
    assert scale.dtype == np.float32 and zero.dtype == row.dtype
    assert scale.tolist() == [*(np.array([3.0, 5, 7]) / (row.highest - middle)).astype(np.float32), 1]
    assert zero.astype(np.int64).tolist() == [middle] * 4


@pytest.mark.parametrize("name", INTEGERS)
def test_asymmetric_ranges(name: str) -> None:
    """Zero is a number of the grid, and the ends of the range are at most half a step off; 32 bits are finer
    than float32."""
    row = ops.FORMATS[name]
    low, high = np.array([-3.0, -1, 2, -7, 0]), np.array([1.0, 5, 7, -2, 0])
    scale, zero = range_scale(low, high, name, symmetric=False)
    assert scale.dtype == np.float32 and zero.dtype == row.dtype
    steps = row.highest - row.lowest
    span = np.maximum(high, 0) - np.minimum(low, 0)
    assert scale.tolist() == [*(span[:4] / steps).astype(np.float32), 1]
    for x in (np.minimum(low, 0), np.maximum(high, 0), np.zeros(5)):
        x = x.astype(np.float32)
        error = np.abs(dequantize(quantize(x, scale, zero, name, 0), scale, zero, 0) - x)
        assert (error <= scale.astype(np.float64) / 2 + np.abs(x) * 2.0**-22).all()
    assert (dequantize(zero, scale, zero, 0) == 0).all()


def test_scalar_ranges() -> None:
    scale, zero = range_scale(-1.0, 1.55, "uint8", symmetric=False)
    assert (scale.shape, zero.shape) == ((), ())
    assert (float(scale), int(zero)) == (pytest.approx(0.01), 100)
    assert int(range_scale(-1.0, 1.55, "int8", symmetric=False)[1]) == -28
    assert range_scale(0, 6, ops.FORMATS["int8"], symmetric=False)[1] == -128


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", INTEGERS)
def test_scales_are_normal_numbers(name: str, symmetric: bool) -> None:
    low, high = np.array([0, 0, -float(FLOAT32.max)]), np.array([1e-45, 1e-300, float(FLOAT32.max)])
    scale, _ = range_scale(low, high, name, symmetric=symmetric)
    assert np.isfinite(scale).all() and (scale >= FLOAT32.tiny).all()
    assert scale[:2].tolist() == [FLOAT32.tiny] * 2


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", INTEGERS)
def test_no_scale_makes_a_finite_number_infinite(name: str, symmetric: bool) -> None:
    """By definition. A scale is that of smaller numbers, or lower by half a step at each end of the range."""
    high = float(FLOAT32.max) * np.array([1, 1, 0, 1, 0.3, 1 - 2e-7])
    low = float(FLOAT32.max) * np.array([-1, 0, -1, -0.3, -1, -0.999])
    scale, zero = range_scale(low, high, name, symmetric=symmetric)
    for ends in (low, high):
        integers = quantize(ends.astype(np.float32), scale, zero, name, 0)
        assert np.isfinite(dequantize(integers, scale, zero, 0)).all()
    usual = 4.0 * range_scale(low / 4, high / 4, name, symmetric=symmetric)[0]
    steps = ops.FORMATS[name].highest - ops.FORMATS[name].lowest
    assert (scale <= usual).all() and (scale >= usual * (1 - 1 / steps - 3e-7)).all()


def test_finite_range() -> None:
    x = np.array([[1, np.nan, -3], [np.inf, 2, 5], [-np.inf, -2, np.nan]], np.float32)
    assert finite_range(x) == (-3, 5)
    low, high = finite_range(x, 0)
    assert (low.tolist(), high.tolist()) == ([-3, 0, -2], [1, 5, 0])
    low, high = finite_range(x, -1)
    assert (low.tolist(), high.tolist()) == ([0, -2, -3], [1, 2, 5])
    assert finite_range(np.full((2, 2), np.nan, np.float32)) == (0, 0)


def true_error(w: Any, scale: Any, name: str, axis: int | None, importance: Any = 1.0) -> NDArray[np.float64]:
    """Return the weighted error of a weight per channel, by division in float64."""
    row, w = ops.FORMATS[name], np.asarray(w, np.float64)
    middle = 0 if row.is_signed else 2 ** (int(row.bits) - 1)
    shape = [1] * w.ndim
    if axis is not None:
        shape[axis] = -1
    s = np.asarray(scale, np.float64).reshape(shape)
    rounded = np.clip(np.rint(w / s) + middle, row.lowest, row.highest) - middle
    others = tuple(i for i in range(w.ndim) if axis is None or i != axis % w.ndim)
    return (importance * (w - rounded * s) ** 2).sum(others)


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("name", INTEGERS)
def test_largest_magnitude_reaches_the_highest_integer(name: str, axis: int | None) -> None:
    row, w = ops.FORMATS[name], RNG.standard_normal((4, 5, 6)).astype(np.float32)
    others = tuple(i for i in range(3) if axis is None or i != axis % 3)
    reach = row.highest - (0 if row.is_signed else 2 ** (int(row.bits) - 1))
    scale = weight_scale(w, name, axis)
    assert scale.dtype == np.float32
    expected = (np.abs(w).max(others).astype(np.float64) / reach).astype(np.float32)
    assert np.array_equal(scale, expected)


IMPORTANCES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "whole": lambda: RNG.random((6, 7, 9)),
    "last": lambda: RNG.random(9, np.float32),
    "middle": lambda: RNG.random((1, 7, 1)),
}


@pytest.mark.parametrize("kind", IMPORTANCES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", ["int4", "uint4", "int8"])
def test_least_squares_scale_against_brute_force(name: str, axis: int | None, kind: str) -> None:
    """The best of the grid in float64, but for float32's rounding of the sums (1e-5), and close to the best
    of a finer grid.

    How close: with step s' = s (1 + d) and the integers q of the best s the error's root grows by at most
    |d| |q s|, the rounding to s' is at least as good as those integers, and a neighbour on the grid is within
    |d| <= 0.01 / 0.32.
    """
    w = RNG.standard_t(3, (6, 7, 9)).astype(np.float32)
    importance = IMPORTANCES[kind]()
    weights = 1.0 if importance is None else importance
    full = weight_scale(w, name, axis)
    found = weight_scale(w, name, axis, method="MSE", importance=importance)
    error = true_error(w, found, name, axis, weights)
    grid = np.array([true_error(w, full * alpha, name, axis, weights) for alpha in integers.ALPHAS])
    assert (error <= grid.min(0) * (1 + 1e-5)).all()
    fine = np.linspace(0.32, 1, 500)
    errors = np.array([true_error(w, full * alpha, name, axis, weights) for alpha in fine])
    size = np.sqrt(true_error(w, FLOAT32.max, name, axis, weights))  # of the weight itself
    root = np.sqrt(errors.min(0))
    assert (np.sqrt(error) <= root + 0.01 / 0.32 * (size + root)).all()


def test_one_outlier_is_cut_off_where_that_helps() -> None:
    w = RNG.uniform(-1, 1, (2, 4096)).astype(np.float32)
    w[1, 7] = 3
    scale = weight_scale(w, "int4", 0, method="MSE")
    full = weight_scale(w, "int4", 0)
    assert full[1] > 2 * scale[1] and scale[0] > 0.8 * full[0]
    assert true_error(w, scale, "int4", 0)[1] < true_error(w, full, "int4", 0)[1] / 2


def test_importance_decides_what_is_cut_off() -> None:
    """With all the weight on the outlier its own grid counts, with none on it the others' does."""
    w = np.full((1, 64), 0.1, np.float32)
    w[0, 0] = 1.0
    importance = np.zeros(64, np.float32)
    importance[0] = 1
    assert weight_scale(w, "int4", method="MSE", importance=importance) == weight_scale(w, "int4")
    other = weight_scale(w, "int4", method="MSE", importance=1 - importance)
    assert abs(np.rint(0.1 / other) * other - 0.1) < 0.002
    assert weight_scale(w, "int4", method="MSE", importance=np.zeros(64)) == weight_scale(w, "int4")


def test_numbers_that_are_not_finite_do_not_count() -> None:
    w = RNG.standard_normal((4, 50)).astype(np.float32)
    holes = w.copy()
    holes[:, ::2] = np.nan
    holes[0, :3:2] = np.inf, -np.inf
    clean = np.where(np.isfinite(holes), holes, 0)
    for axis in (None, 0, 1):
        for method in ("MinMax", "MSE"):
            found = weight_scale(holes, "int4", axis, method=method)
            assert np.array_equal(found, weight_scale(clean, "int4", axis, method=method))


@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3])
def test_pieces_do_not_matter(axis: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    w = RNG.standard_t(3, (9, 5, 4, 3)).astype(np.float32)
    whole = weight_scale(w, "int4", axis, method="MSE", importance=w[:1] ** 2)
    for size in (1, 7, 40, 101):
        monkeypatch.setattr(squared_errors, "CHUNK", size)
        assert np.array_equal(weight_scale(w, "int4", axis, method="MSE", importance=w[:1] ** 2), whole)


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes that were allocated at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_memory(axis: int | None) -> None:
    """Nothing but the result, the channels' parameters and, for least squares, some chunks of float32."""
    w = RNG.standard_normal((2000, 2000), np.float32)
    slack = 200_000
    scale = weight_scale(w, "int4", axis)
    assert peak(lambda: quantize(w, scale, 0, "int4", axis)) < w.size + slack
    q = quantize(w, scale, 0, "int8", axis)
    assert peak(lambda: dequantize(q, scale, 0, axis)) < w.nbytes + slack
    assert peak(lambda: weight_scale(w, "int8", axis)) < slack
    importance = np.ones(2000, np.float32)
    chunks = 6 * 4 * squared_errors.CHUNK + 3 * 8 * len(integers.ALPHAS) * scale.size
    if axis == 0:
        work = lambda: weight_scale(w, "int4", axis, method="MSE", importance=importance)  # noqa: E731
    else:
        work = lambda: weight_scale(w, "int4", axis, method="MSE")  # noqa: E731
    assert peak(work) < chunks + slack


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: quantize(x, 1, 0, "mx4"),
            "format 'mx4' has no scale and zero point, legal are int2, uint2, int4",
        ),
        (lambda x: quantize(x, 1, 0, "bfloat16"), "format 'bfloat16' has no scale"),
        (lambda x: quantize(x, 1, 0, "int5"), "format 'int5' is unknown"),
        (lambda x: quantize(x.astype(np.float64), 1, 0, "int8"), "an array of float64 cannot be quantized"),
        (lambda x: quantize(x, 1, 0, "int8", 2), "axis 2 is out of range for an array of rank 2"),
        (
            lambda x: quantize(x, np.ones(2), 0, "int8"),
            r"scale has shape \[2\], legal are 1 element or \[1\]",
        ),
        (lambda x: quantize(x, np.ones(2), 0, "int8", 1), r"scale has shape \[2\], .* or \[3\]"),
        (lambda x: quantize(x, np.ones(3), [0, 0], "int8", 1), r"zero_point has shape \[2\], .* or \[3\]"),
        (lambda x: quantize(x, 1, 8, "int4"), "zero_point 8 exceeds the range of 'int4', -8 to 7"),
        (lambda x: dequantize(x, 1, 0), "format 'float32' is unknown"),
        (lambda x: weight_scale(x, "int8", -3), "axis -3 is out of range"),
        (lambda x: weight_scale(x, "int8", method="L1"), "method 'L1' is unknown, legal are MinMax, MSE"),
        (lambda x: weight_scale(x, "mx4"), "format 'mx4' has no scale"),
        (
            lambda x: weight_scale(x, "int8", method="MSE", importance=np.ones(2)),
            r"importance \[2\] does not fit a weight \[2, 3\]",
        ),
        (lambda x: range_scale(1, 0, "int8", symmetric=True), "range 1 to 0 is not"),
        (lambda x: range_scale([0, 0], [1, np.inf], "int8", symmetric=True), "range 0 to inf is not finite"),
        (lambda x: range_scale(np.nan, 1, "int8", symmetric=False), "range nan to 1 is not finite"),
    ],
)
def test_errors(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(np.ones((2, 3), np.float32))
