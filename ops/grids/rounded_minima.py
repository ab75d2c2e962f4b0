"""Find steps and minima of numbers that were then rounded to float16 or bfloat16.

A number with the integer q bounds q * d + m from both sides. Two numbers bound d, whatever m is, and all
pairs together leave exactly the steps for which a minimum exists; then all numbers together bound the
minimum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array
from ops.grids.half_units import SHORT, half_units, rounded, short

_NEAR = 4  # half units of the largest number that a number may be off the line between the ends of a block

_MARGIN = 8
"""Divisor of an interval: the part of it that counts as close to an end."""


def rounded_with_minimum(
    rows: Float32Array, q: Float64Array, width: Float64Array, rounding: str
) -> tuple[Float32Array, Float32Array, NDArray[np.bool_]]:
    """Return steps d and minima m for which q * d + m, rounded, are the numbers of each block [B, n].

    ``q`` starts at 0, ``width``: approximate steps. The third result: whether they exist; they have as few
    bits as possible.
    """
    step, minimum = width.astype(np.float32), rows.min(1)
    _, unit = half_units(np.abs(rows).max(1), rounding)
    off = np.abs(rows - (q * width[:, None] + minimum[:, None])).max(1)
    fits = np.zeros(len(rows), bool)
    left = np.flatnonzero(off <= _NEAR * unit)
    if not len(left):
        return step, minimum, fits
    bounds = _bounds(rows[left], rounding)
    low, high = _steps(q[left], *bounds)
    fewest = _shortest(low, high)
    rest = fewest[:, None].astype(np.float64) * q[left]
    least = _shortest((bounds[0] - rest).max(1), (bounds[1] - rest).min(1))
    rebuilt = rounded(q[left].astype(np.float32) * fewest[:, None] + least[:, None], rounding)
    same = (rebuilt == rows[left]).all(1) & (fewest > 0)
    hit = left[same]
    step[hit], minimum[hit], fits[hit] = fewest[same], least[same], True
    return step, minimum, fits


def _bounds(rows: Float32Array, rounding: str) -> tuple[Float64Array, Float64Array]:
    """Return the ends of the intervals that round to the numbers of blocks."""
    below, above = half_units(rows, rounding)
    is_negative, numbers = rows < 0, rows.astype(np.float64)
    return numbers - np.where(is_negative, above, below), numbers + np.where(is_negative, below, above)


def _steps(q: Float64Array, low: Float64Array, high: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return the ends of the steps that all pairs of numbers allow."""
    levels = int(q.max()) + 1
    most = np.stack([low.max(1, where=q == level, initial=-np.inf) for level in range(levels)], 1)
    least = np.stack([high.min(1, where=q == level, initial=np.inf) for level in range(levels)], 1)
    start: Float64Array = np.zeros(len(q))
    end: Float64Array = np.full(len(q), np.inf)
    for apart in range(1, levels):
        np.maximum(start, ((most[:, apart:] - least[:, :-apart]) / apart).max(1), out=start)
        np.minimum(end, ((least[:, apart:] - most[:, :-apart]) / apart).min(1), out=end)
    return start, end


def _shortest(low: Float64Array, high: Float64Array) -> Float32Array:
    """Return a number between two others with as few bits as possible, or their middle.

    It is not close to either end, which would leave no room for the other of step and minimum.
    """
    middle, margin = np.where(np.isfinite(high), (low + high) / 2, low), (high - low) / _MARGIN
    shortest = middle.astype(np.float32)
    is_open = np.ones(len(shortest), bool)
    for bits in SHORT:
        tried = short(middle, bits)
        fits = is_open & (low + margin <= tried) & (tried <= high - margin)
        shortest[fits] = tried[fits]
        is_open &= ~fits
    return shortest
