"""Scales and zero points of blocks with few bits, chosen by the blocks' numbers.

In 4 bits a step is a large part of a block's range, and all of its numbers determine the quality of a scale.
The error of a block is the sum of importance * (x - its rounding)^2. The default importance of x is |x| plus
the root of the block's mean square, and with a zero point the squares of both: large numbers count more,
since they contribute most to outputs.

Signed integers extend one step further below zero, -8 to 7: a scale is negative if the number of largest
magnitude is positive, so that this number gets the longer side. For given integers the scale of least error
has a closed form, with which each search ends. Scales are float16 numbers where these have full precision,
so that they can be stored in half the bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array, QParams
from ops.formats import Format
from ops.integers import finite_range
from ops.squared_errors import squared_errors
from ops.subnormals import keeps_subnormals

SIGNED_STEPS = np.arange(28, 49, dtype=np.float32) / np.float32(40)
"""Candidates of a symmetric scale, relative to that with the furthest integer for the largest number."""

RANGE_STEPS = np.arange(23, 38, dtype=np.float32) / np.float32(35)
"""Candidates of an asymmetric scale, relative to the one whose integers cover the whole range."""

_OFFSETS = (0, -1, 1)  # from the zero point that best centres the integers' range on the block's
_LONG = 128  # block size from which squares count fully, see _squares
_FITS = 2
_ELEMENTS = 1 << 18  # of the rows searched together
_LEAST, _MOST = np.float32(2.0**-14), np.float32(65504)  # float16's normal numbers

_Candidates = Callable[[Float32Array], tuple[Float32Array, Float64Array]]


def short_scales(scale: NDArray[np.floating]) -> Float32Array:
    """Return scales rounded to float16 where it has 11 bits for them, else to float32."""
    scales = np.asarray(scale, np.float32)
    size = np.abs(scales)
    fits = (size >= _LEAST) & (size <= _MOST)
    return np.where(fits, np.where(fits, scales, 1).astype(np.float16).astype(np.float32), scales)


@keeps_subnormals
def signed_block_scales(
    rows: Float32Array, fmt: Format, importance: NDArray[np.floating] | None = None
) -> Float32Array:
    """Return the scale of each row [B, n], of either sign, for a zero point of 0.

    ``importance`` has the shape of the rows. The scale of zeros is 1. Non-finite numbers are ignored.
    """
    reach = np.float32(fmt.lowest)

    def _candidates(part: Float32Array) -> tuple[Float32Array, Float64Array]:
        low, high = finite_range(part, 0)
        largest = np.where(high > -low, high, low)
        scale = np.where(largest == 0, np.float32(1), largest / reach)
        turned = scale[None] * (reach / -(reach + 1))  # the largest number on the shorter side
        scales = _storable(np.concatenate([SIGNED_STEPS[:, None] * scale, turned]))
        return scales, np.zeros(scales.shape)

    return _search(rows, fmt, importance, _candidates, _magnitudes)[0]


@keeps_subnormals
def range_block_parameters(
    rows: Float32Array, fmt: Format, importance: NDArray[np.floating] | None = None
) -> QParams:
    """Return scale and zero point of each row [B, n], whose integers need not cover its whole range.

    ``importance`` has the shape of the rows. Zeros have scale 1, zero point 0. Non-finite ones are ignored.
    """
    middle, steps = (fmt.lowest + fmt.highest) / 2, fmt.highest - fmt.lowest

    def _candidates(part: Float32Array) -> tuple[Float32Array, Float64Array]:
        low, high = (end.astype(np.float64) for end in finite_range(part, 0))
        scale = np.where(high > low, (high - low) / steps, 1)
        tried = _storable(RANGE_STEPS[:, None] * scale)
        nearest = middle - (low + high) / 2 / tried
        zeros = [np.clip(np.rint(nearest + offset), fmt.lowest, fmt.highest) for offset in _OFFSETS]
        return np.tile(tried, (len(_OFFSETS), 1)), np.concatenate(zeros)

    scale, zero_point = _search(rows, fmt, importance, _candidates, _squares)
    return scale, zero_point.astype(fmt.dtype)


def _search(
    rows: Float32Array,
    fmt: Format,
    importance: NDArray[np.floating] | None,
    candidates: _Candidates,
    importance_of: Callable[[Float32Array], Float32Array],
) -> tuple[Float32Array, Float64Array]:
    """Return the best candidate for each row, with the scale that fits its integers best."""
    count, size = rows.shape
    scale, zero_point = np.ones(count, np.float32), np.zeros(count)
    step = max(1, _ELEMENTS // max(1, size))
    for chunk in (slice(first, first + step) for first in range(0, count, step)):
        part = np.ascontiguousarray(rows[chunk], np.float32)
        with np.errstate(invalid="ignore"):  # infinities of both signs
            is_finite = np.isfinite(part.sum(dtype=np.float64))
        if not is_finite:
            part = np.where(np.isfinite(part), part, np.float32(0))
        counts = importance_of(part) if importance is None else np.asarray(importance[chunk], np.float32)
        tried, zeros = candidates(part)
        errors = squared_errors(part[None], tried, zeros, fmt, counts[None])
        best = errors.argmin(0), np.arange(len(part))
        fitted = _fitted(part, counts, tried[best], zeros[best], errors[best], fmt)
        is_zero = ~part.any(1)
        scale[chunk], zero_point[chunk] = np.where(is_zero, 1, fitted), np.where(is_zero, 0, zeros[best])
    return scale, zero_point


def _magnitudes(rows: Float32Array) -> Float32Array:
    """Return magnitudes plus the root mean square of their row, relative to the largest number."""
    size = _shares(rows)
    return size + np.sqrt(np.square(size).mean(1, keepdims=True, dtype=np.float32))


def _squares(rows: Float32Array) -> Float32Array:
    """Return squares plus the row's mean square times (128 / its numbers)^2, relative to the largest.

    With a zero point, clipping the ends gains little, and less in short rows: there all numbers count nearly
    equally. SmolLM2 in uint4 with blocks of 32 has 0.207 nats, and 0.223 with a factor of 1; with the scales
    of its norms folded into weights 0.302 and 0.364. With blocks of 128 it has 0.346, and 0.401 if all count
    equally.
    """
    square = np.square(_shares(rows))
    evenness = np.float32((_LONG / max(1, rows.shape[1])) ** 2)
    return square + evenness * square.mean(1, keepdims=True, dtype=np.float32)


def _shares(rows: Float32Array) -> Float32Array:
    """Return magnitudes relative to the largest in their row."""
    size = np.abs(rows)
    largest = size.max(1, keepdims=True, initial=0)
    size /= np.where(largest > 0, largest, 1)
    return size


def _storable(scale: NDArray[np.floating]) -> Float32Array:
    """Return short scales that are not subnormal."""
    scales = np.asarray(scale, np.float32)
    return short_scales(np.copysign(np.maximum(np.abs(scales), np.finfo(np.float32).tiny), scales))


def _fitted(
    rows: Float32Array,
    counts: Float32Array,
    scale: Float32Array,
    zeros: Float64Array,
    least: Float64Array,
    fmt: Format,
) -> Float32Array:
    """Return the scales of least squared error for the rounded integers, where these reduce the error."""
    low, high = ((limit - zeros[:, None]).astype(np.float32) for limit in (fmt.lowest, fmt.highest))
    for _ in range(_FITS):
        steps = np.clip(np.rint(rows / scale[:, None]), low, high)
        weighed = steps * counts
        squares = np.einsum("bn,bn->b", weighed, steps, dtype=np.float64)
        products = np.einsum("bn,bn->b", weighed, rows, dtype=np.float64)
        fitted = np.where(squares > 0, products / np.where(squares > 0, squares, 1), scale)
        tried = _storable(np.where(fitted == 0, scale, fitted))
        error = squared_errors(rows[None], tried[None], zeros[None], fmt, counts[None])[0]
        is_better = error < least
        scale, least = np.where(is_better, tried, scale), np.where(is_better, error, least)
    return scale
