"""Find the integers of numbers that were rounded to 16 bits after their multiplication.

The largest of 127 steps may be off by half a step in bfloat16: their integers follow from the step, which
the smaller numbers determine.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import AnyArray, Float32Array, Float64Array
from ops.grids.half_units import half_units, rounded

_TIMES = 3  # rounds in which bounds on the step fix more integers, and these tighten the bounds


def integers_of(
    values: Float32Array, step: AnyArray, minimum: AnyArray | None, rounding: str
) -> Float64Array:
    """Return the integers that with step and minimum, which broadcast, are closest to numbers."""
    part = values.astype(np.float64)
    q = np.rint((part if minimum is None else part - minimum) / step)
    if rounding != "float32":
        for other in (q + 1, q - 1):
            is_off = _made(q, step, minimum, rounding) != values
            q = np.where(is_off & (_made(other, step, minimum, rounding) == values), other, q)
    return np.asarray(q)


def _made(q: Float64Array, step: AnyArray, minimum: AnyArray | None, rounding: str) -> Float32Array:
    products = q.astype(np.float32) * step
    return rounded(products if minimum is None else products + minimum, rounding)


def told_by_smaller(rows: Float32Array, q: Float64Array, rounding: str) -> Float64Array:
    """Return the integers of blocks [B, n], from the step that the smaller numbers of each determine."""
    size, numbers = np.abs(rows), np.abs(q)
    below, above = half_units(rows, rounding)
    is_sure = (numbers > 0) & (numbers <= numbers.max(1, keepdims=True) / 2)
    low, high = np.zeros(len(rows)), np.full(len(rows), np.inf)
    for _ in range(_TIMES):
        divisor = np.where(numbers > 0, numbers, 1)
        low = ((size - below) / divisor).max(1, where=is_sure, initial=0)
        high = ((size + above) / divisor).min(1, where=is_sure, initial=np.inf)
        is_told = is_sure.any(1) & (low > 0)
        first = np.ceil((size - below) / np.where(is_told, high, 1)[:, None])
        last = np.floor((size + above) / np.where(is_told, low, 1)[:, None])
        is_sure = (first == last) & (last > 0) & is_told[:, None]
        nearest = np.rint(size / np.where(is_told, (low + high) / 2, 1)[:, None])
        numbers = np.where(is_told[:, None], np.where(is_sure, first, nearest), numbers)
    return np.copysign(numbers, rows)
