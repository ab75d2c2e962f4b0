"""Integers that represent floats: choose a scale, quantize, dequantize.

As in ONNX's QuantizeLinear and DequantizeLinear, q = saturate(round(x / scale) + zero_point), halves to
even, and x = (q - zero_point) * scale, both in float32. Integers of 4 and 2 bits are those of ml_dtypes, one
number per byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ops._library import dequantize_linear, quantize_linear
from ops.array_types import Float32Array
from ops.bfloat16 import to_bfloat16
from ops.formats import FLOAT_TYPES, FORMATS, LINEAR_TYPES, Format, get_format
from ops.legal_names import refuse_unknown
from ops.powers_of_two import HALVINGS, power_scale
from ops.squared_errors import squared_errors
from ops.subnormals import keeps_subnormals

Integers = NDArray[Any]

ALPHAS = np.arange(100, 30, -2) / 100
_TINY, _HUGE = np.float64(np.finfo(np.float32).tiny), np.float64(np.finfo(np.float32).max)


@keeps_subnormals
def range_scale(
    low: ArrayLike, high: ArrayLike, format: str | Format, *, symmetric: bool, power_of_two: bool = False
) -> tuple[Float32Array, Integers]:
    """Return scale and zero point with which an integer format covers ranges of numbers.

    Symmetric: the scale is max(|low|, |high|) / highest and the zero point 0; for an unsigned format the zero
    point is the middle, (highest + 1) / 2, and takes its place away from the divisor. Otherwise the range is
    widened to include 0, the scale is (high - low) / (highest - lowest), and the zero point is the integer
    nearest to what then stands for 0. The scale of a range of zeros is 1; no scale is below the smallest
    normal float32, nor so large that an integer of the range would stand for an infinite float32. Both
    results have the shape of ``low``, which may be a scalar. ``power_of_two``: the scale is the least power
    of two that is not below that one.

    Raises ValueError unless the format is an integer, and for a range that is not finite or has low > high.
    """
    fmt = _integer_row(format)
    least, greatest = np.asarray(low, np.float64), np.asarray(high, np.float64)
    _check_range(least, greatest)
    if symmetric:
        middle = 0 if fmt.is_signed else (fmt.highest + 1) / 2
        top = fmt.highest - middle
        scale = _finite(_as_scale(np.maximum(np.abs(least), np.abs(greatest)) / top), top)
        scale = power_scale(scale, top) if power_of_two else scale
        return scale, np.full(scale.shape, middle, fmt.dtype)
    least, greatest = np.minimum(least, 0), np.maximum(greatest, 0)
    scale = _as_scale((greatest - least) / (fmt.highest - fmt.lowest))
    scale = power_scale(scale, fmt.highest - fmt.lowest) if power_of_two else scale
    zero_point = np.clip(np.rint(fmt.lowest - least / scale), fmt.lowest, fmt.highest)
    steps = np.maximum(zero_point - fmt.lowest, fmt.highest - zero_point)
    return _finite(scale, steps), np.asarray(zero_point).astype(fmt.dtype)


@keeps_subnormals
def quantize(
    x: NDArray[np.generic],
    scale: ArrayLike,
    zero_point: ArrayLike,
    format: str | Format,
    axis: int | None = None,
) -> Integers:
    """Round floats to integers, as ONNX's QuantizeLinear does, in one pass of native code.

    ``x`` is float32, float16 or bfloat16, of any shape; what is not contiguous float32 is copied first.
    ``scale`` and ``zero_point`` are scalars, or have one element for each index of ``axis``. Infinities
    saturate, NaN becomes the zero point. The result has the shape of ``x`` and the type of ``format``.

    Raises ValueError for other types, an axis or a shape that does not fit, and a zero point out of range.
    """
    fmt, x = _integer_row(format), np.asarray(x)
    if x.dtype not in FLOAT_TYPES:
        legal = ", ".join(map(str, FLOAT_TYPES))
        raise ValueError(f"an array of {x.dtype} cannot be quantized, legal are {legal}")
    result = np.empty(x.shape, _storage(fmt))
    source = np.ascontiguousarray(x, np.float32).reshape(-1)
    parameters = _channel_parameters(x.shape, scale, zero_point, fmt, axis)
    quantize_linear(source, as_bytes(result), LINEAR_TYPES[fmt.name], *parameters)
    if fmt.bits < 8:
        result &= (1 << int(fmt.bits)) - 1  # ml_dtypes keeps them in the low bits of a byte
    return result.view(fmt.dtype)


@keeps_subnormals
def dequantize(
    q: Integers, scale: ArrayLike, zero_point: ArrayLike, axis: int | None = None
) -> NDArray[np.float32]:
    """Return the float32 numbers that integers stand for, as ONNX's DequantizeLinear does.

    ``q`` has the type of an integer format; ``scale``, ``zero_point`` and ``axis`` are as in quantize. Raises
    ValueError as quantize does.
    """
    q = np.asarray(q)
    fmt = _integer_row(q.dtype.name)
    result = np.empty(q.shape, np.float32)
    source = np.ascontiguousarray(q.astype(_storage(fmt), copy=False))
    parameters = _channel_parameters(q.shape, scale, zero_point, fmt, axis)
    dequantize_linear(as_bytes(source), result.reshape(-1), LINEAR_TYPES[fmt.name], *parameters)
    return result


@keeps_subnormals
def weight_scale(
    w: NDArray[np.float32],
    format: str | Format,
    axis: int | None = None,
    *,
    method: str = "MinMax",
    importance: NDArray[np.floating] | None = None,
    power_of_two: bool = False,
) -> Float32Array:
    """Return the symmetric scale of a weight: one, or one for each index of ``axis``.

    MinMax: the largest finite magnitude reaches the highest integer, see range_scale. MSE: that scale times
    the one of ALPHAS (1, 0.98 .. 0.32) with the least sum of importance * (w - its rounding)^2; the largest
    wins a tie. ``power_of_two``: the least power of two that is not below the scale, or that times the best
    of HALVINGS. ``importance`` is not negative and broadcasts to the shape of ``w``. Numbers that are not
    finite are ignored. Memory beyond the weight: some chunks; an importance that varies along several axes
    but not all may be broadcast to a copy.

    Raises ValueError for an unknown method, a format other than integers, an axis out of range and an
    importance of another shape.
    """
    fmt, w = _integer_row(format), np.asarray(w, np.float32)
    refuse_unknown(method, ("MinMax", "MSE"), "method")
    shape = _channel_shape(w.shape, axis)
    low, high = finite_range(w, axis)
    scale, zero_point = range_scale(low, high, fmt, symmetric=True, power_of_two=power_of_two)
    if method == "MinMax" or w.size == 0:
        return scale
    candidates = _as_scale((HALVINGS if power_of_two else ALPHAS)[:, None] * scale.reshape(-1))
    zeros = np.full(candidates.shape, float(zero_point.flat[0]))
    weights = None if importance is None else _broadcast(importance, w.shape).reshape(shape)
    errors = squared_errors(w.reshape(shape), candidates, zeros, fmt, weights)
    return candidates[errors.argmin(0), np.arange(scale.size)].reshape(scale.shape)


@keeps_subnormals
def weight_range(
    w: NDArray[np.float32],
    format: str | Format,
    axis: int | None = None,
    *,
    importance: NDArray[np.floating] | None = None,
) -> tuple[Float32Array, Integers]:
    """Return scale and zero point of least weighted error: one each, or one for each index of ``axis``.

    Each end of the range of the finite numbers and 0 in turn is multiplied by the best of ALPHAS, twice; the
    largest wins a tie, see range_scale. The error is the sum of importance * (w - its rounding)^2, as in
    weight_scale.

    Raises ValueError as weight_scale does.
    """
    fmt, w = _integer_row(format), np.asarray(w, np.float32)
    flat = w.reshape(_channel_shape(w.shape, axis))
    weights = None if importance is None else _broadcast(importance, w.shape).reshape(flat.shape)
    low, high = (np.asarray(end).astype(np.float64).reshape(-1) for end in finite_range(w, axis))
    shape = () if axis is None else low.shape
    ends = np.stack([low, high])
    for i in (0, 1, 0, 1):
        moved = np.repeat(ends[:, None], len(ALPHAS), axis=1)
        moved[i] = ALPHAS[:, None] * (low, high)[i]
        scales, points = range_scale(moved[0], moved[1], fmt, symmetric=False)
        best = squared_errors(flat, scales, points, fmt, weights).argmin(0)
        ends[i] = moved[i][best, np.arange(low.size)]
    scale, point = range_scale(ends[0], ends[1], fmt, symmetric=False)
    return scale.reshape(shape), point.reshape(shape)


@keeps_subnormals
def finite_range(x: NDArray[np.floating], axis: int | None = None) -> tuple[Float32Array, Float32Array]:
    """Return the least and the greatest finite number of an array, or of each index of ``axis``, and 0."""
    reduced = None if axis is None else tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    low, high = x.min(reduced, initial=0), x.max(reduced, initial=0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        finite = np.isfinite(x)
        low, high = x.min(reduced, initial=0, where=finite), x.max(reduced, initial=0, where=finite)
    return low, high


def _broadcast(importance: NDArray[np.floating], shape: tuple[int, ...]) -> NDArray[np.floating]:
    """Return an importance in the shape of a weight, scaled by a power of two if it is far from 1."""
    try:
        exponent = -np.frexp(np.max(importance, initial=0))[1]
        return np.broadcast_to(np.ldexp(importance, exponent) if abs(exponent) > 64 else importance, shape)
    except ValueError:
        given_shape = list(np.shape(importance))
        raise ValueError(f"importance {given_shape} does not fit a weight {list(shape)}") from None


def _integer_row(format: str | Format) -> Format:
    fmt = get_format(format)
    if not fmt.is_integer:
        legal = ", ".join(name for name, other in FORMATS.items() if other.is_integer)
        raise ValueError(f"format '{fmt.name}' has no scale and zero point, legal are {legal}")
    return fmt


def _check_range(low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
    wrong = ~(np.isfinite(low) & np.isfinite(high) & (low <= high))
    if wrong.any():
        i = np.unravel_index(wrong.argmax(), wrong.shape)
        raise ValueError(f"range {low[i]:g} to {high[i]:g} is not finite, or its ends are exchanged")


def _as_scale(scale: NDArray[np.float64]) -> Float32Array:
    within = np.minimum(np.maximum(scale, _TINY), _HUGE).astype(np.float32)
    return np.where(scale == 0, np.float32(1), within)


def _finite(scale: Float32Array, steps: ArrayLike) -> Float32Array:
    """Lower scales for which so many steps would overflow float32, as little as possible."""
    wide = _HUGE / np.asarray(steps, np.float32)
    most = wide.astype(np.float32)
    return np.asarray(np.minimum(scale, np.where(most > wide, np.nextafter(most, np.float32(0)), most)))


def _storage(fmt: Format) -> np.dtype[Any]:
    """Return the dtype that native code writes: 4 and 2 bits with their sign extended to a byte."""
    return fmt.dtype if fmt.bits >= 8 else np.dtype(np.int8 if fmt.is_signed else np.uint8)


def _channel_shape(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    """Return outer, channels, inner: the elements before, along and after the axis."""
    if axis is None:
        return 1, 1, int(np.prod(shape))
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} is out of range for an array of rank {len(shape)}")
    axis %= len(shape)
    return int(np.prod(shape[:axis])), shape[axis], int(np.prod(shape[axis + 1 :]))


def _channel_parameters(
    shape: tuple[int, ...], scale: ArrayLike, zero_point: ArrayLike, fmt: Format, axis: int | None
) -> tuple[Float32Array, NDArray[np.uint8], int]:
    """Return scales and zero points per channel, the latter as bytes, and the elements in a channel's row."""
    _, channels, inner = _channel_shape(shape, axis)
    scales, zeros = np.asarray(scale, np.float32), np.asarray(zero_point).astype(np.int64)
    for name, values in (("scale", scales), ("zero_point", zeros)):
        if values.size != 1 and values.shape != (channels,):
            raise ValueError(f"{name} has shape {list(values.shape)}, legal are 1 element or [{channels}]")
    beyond = zeros[(zeros < fmt.lowest) | (zeros > fmt.highest)]
    if beyond.size:
        limits = f"{fmt.lowest:.0f} to {fmt.highest:.0f}"
        raise ValueError(f"zero_point {beyond[0]} exceeds the range of '{fmt.name}', {limits}")
    typed = np.broadcast_to(zeros.reshape(-1), channels).astype(_storage(fmt))
    return np.ascontiguousarray(np.broadcast_to(scales.reshape(-1), channels)), as_bytes(typed), inner


def as_bytes(x: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous array, flat and without a copy."""
    return x.reshape(-1).view(np.uint8)


def as_float_type(values: NDArray[np.floating], fmt: Format) -> NDArray[np.generic]:
    """Return numbers as bfloat16 or float16, as the Extended operators round them: float16 saturates."""
    if fmt.name == "bfloat16":
        return to_bfloat16(values)
    return np.clip(values, -fmt.highest, fmt.highest).astype(np.float16)
