"""Find a step of which all numbers of a block are exact integer multiples.

Weights that were once in few bits are q * d, or q * d + m, in float32 arithmetic: q an integer, d and m one
number for each block. If they were then rounded to float16 or bfloat16, ``rounding`` names that type.

For given integers each number bounds the step from both sides, since its product may be off by half a unit
in the last place: the step is in the intersection of these intervals, and has few bits if the source stored
it in few. The result is recomputed and compared, so that nothing depends on a tolerance except a minimum,
which kernels cannot add exactly either.

Random numbers only pass by chance: of the n numbers of a block, one fixes the step and one the minimum, and
each other one is on one of 2^bits levels that fill a share of at most 2^bits * 2^-22 of the block's range.
With 8 bits and blocks of 16 that is (2^-14)^14 = 2^-196. Numbers in float16 have a precision of 2^-11: with
8 bits about one of 8 passes, (2^-3)^14 = 2^-42 for a block. Numbers in bfloat16 pass more often, in 8 bits
depending on their size: nearly all of the largest, one of 8 below an eighth of it, about 2^-6 of all blocks.
A weight has to pass in all of its blocks, which are at least 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array
from ops.grids.half_units import SHORT, half_units, rounded, short
from ops.grids.rounded_integers import integers_of, told_by_smaller
from ops.grids.rounded_minima import rounded_with_minimum

_MOST_GAPS = 16  # most steps in the least gap of a block
_TOGETHER = 1 << 17  # numbers for which several counts of steps are tried at once
_ENDS = (127, 128, 31, 32, 15, 16, 12, 7, 8, 3, 4, 1, 2)

_MOST_OFFSET = 31  # highest integer to try for a block's least number, instead of 0: 5 bits of K-quants

_MINIMUM_ERROR = 2.0**-21
"""Relative to a block's largest number: float zero points of kernels add about 2^-23, 1e-6 in total."""


@dataclass(frozen=True)
class Kind:
    """Grids to search for: bits of an integer, whether there is a minimum, and the final rounding.

    ``element``: the type of 8-bit floats instead of integers.
    """

    bits: int
    has_minimum: bool = False
    rounding: str = "float32"
    element: str = ""

    @property
    def steps(self) -> int:
        """The most steps between the ends of a block; for rounded sums as with 5 bits."""
        is_rounded_sum = self.has_minimum and self.rounding != "float32"
        return (1 << (min(self.bits, 5) if is_rounded_sum else self.bits)) - 1


@dataclass(frozen=True)
class BlockGrids:
    """Step and minimum of each block, float32 [B], and whether they reproduce each of its numbers.

    ``least`` and ``most`` are the ends of its integers.
    """

    step: Float32Array
    minimum: Float32Array
    fits: NDArray[np.bool_]
    least: NDArray[np.int16]
    most: NDArray[np.int16]

    @classmethod
    def of(
        cls,
        rows: Float32Array,
        step: Float32Array,
        minimum: Float32Array,
        fits: NDArray[np.bool_],
        rounding: str = "float32",
    ) -> BlockGrids:
        """Return grids of blocks [B, n] with the ends of their integers."""
        least, most = (
            np.where(fits, integers_of(ends, step, minimum, rounding), 0).astype(np.int16)
            for ends in (rows.min(1), rows.max(1))
        )
        return cls(step, minimum, fits, least, most)


def fit_blocks(rows: Float32Array, kind: Kind) -> BlockGrids:
    """Search the grid of each block [B, n] of finite numbers. The scale of zeros is 1."""
    values = rows.astype(np.float64)
    low = values.min(1) if kind.has_minimum else np.minimum(values.min(1), 0)
    span = values.max(1) - low if kind.has_minimum else np.maximum(values.max(1), 0) - low
    is_flat = span == 0
    steps_of, minima = np.ones(len(rows), np.float32), np.where(is_flat, low, 0).astype(np.float32)
    is_rounded = (rounded(rows, kind.rounding) == rows).all(1)
    is_found = is_flat & is_rounded
    open_blocks = np.flatnonzero(~is_flat & is_rounded)
    gap = _least_gaps(values, kind) if kind.rounding == "float32" else None
    counts = _counts(span, gap, span / np.abs(values).max(1), kind)
    while len(open_blocks):
        tried = list(islice(counts, max(1, _TOGETHER // (len(open_blocks) * rows.shape[1]))))
        if not tried:
            break
        each = [open_blocks[steps[open_blocks] < kind.steps + 1] for steps in tried]
        chosen = np.concatenate(each)
        width = np.concatenate([span[some] / steps[some] for some, steps in zip(each, tried, strict=True)])
        least = low[chosen, None] if kind.has_minimum else 0
        q = np.rint((values[chosen] - least) / width[:, None])
        step, minimum, fits = _solve(rows[chosen], q, width, kind)
        hit = np.flatnonzero(fits)[::-1]  # of several counts that fit a block, the first is written last
        to = chosen[hit]
        steps_of[to], minima[to], is_found[to] = step[hit], minimum[hit], True
        open_blocks = open_blocks[~is_found[open_blocks]]
    return BlockGrids.of(rows, steps_of, minima, is_found, kind.rounding)


def _solve(
    rows: Float32Array, q: Float64Array, width: Float64Array, kind: Kind
) -> tuple[Float32Array, Float32Array, NDArray[np.bool_]]:
    """Return step and minimum of each block with the integers q, and whether they reproduce it."""
    if kind.has_minimum:
        step, minimum, fits = _with_minimum(rows, q, width, kind)
    elif kind.rounding != "float32":
        step, fits = scales_of(rows, told_by_smaller(rows, q, kind.rounding), kind.rounding)
        minimum = np.zeros_like(step)
    else:
        step, minimum, fits = _through_zero(rows, q, kind)
    return step, minimum, fits & _is_told(rows, step, minimum, kind)


def _is_told(rows: Float32Array, step: Float32Array, minimum: Float32Array, kind: Kind) -> NDArray[np.bool_]:
    """Return whether rounded numbers still determine the integers from which they were computed."""
    if kind.rounding == "float32":
        return np.ones(len(rows), bool)
    q = integers_of(rows, step[:, None], minimum[:, None], kind.rounding)
    room = q.max(1, initial=0) - q.min(1, initial=0)
    same = _sums(q, step, minimum, kind.rounding) == rows
    return np.asarray(same.all(1) & (room <= kind.steps))


def _least_gaps(values: Float64Array, kind: Kind) -> Float64Array:
    """Return the least difference of two levels of each block; without a minimum 0 is a level."""
    levels = values if kind.has_minimum else np.pad(values, ((0, 0), (0, 1)))
    gaps = np.diff(np.sort(levels, 1))
    return np.asarray(np.min(gaps, 1, initial=np.inf, where=gaps > 0))


def _counts(
    span: Float64Array, gap: Float64Array | None, sides: Float64Array, kind: Kind
) -> Iterator[Float64Array]:
    """Yield how many steps each block may span, fewest first.

    The least gap of exact levels is a whole number of steps. After a rounding, gaps are too coarse to tell,
    and all counts are tried: first those of a full range, whose largest number is the highest integer of
    some bit width, or 12 halves of E2M1. ``sides``: the span relative to the largest number.
    """
    if gap is not None:
        for count in range(1, _MOST_GAPS + 1):
            yield np.rint(count * (span / gap))
        return
    yield np.full(len(span), float(kind.steps))
    if not kind.has_minimum:
        for end in _ENDS:
            yield end * sides
    for steps in range(1, kind.steps):
        yield np.full(len(span), float(steps))


def _through_zero(
    rows: Float32Array, q: Float64Array, kind: Kind
) -> tuple[Float32Array, Float32Array, NDArray[np.bool_]]:
    """Return steps d for which q * d are the numbers of each block, minima of 0, and whether d exists."""
    step, fits = scales_of(rows, q)
    room = q.max(1, initial=0) - q.min(1, initial=0)
    for count in range(2, kind.steps + 1):  # a step of which the numbers' step is a multiple, in fewer bits
        more = np.flatnonzero(fits & (room * count <= kind.steps) & (short(step, 11) != step))
        if not len(more):
            break
        finer = short(step[more].astype(np.float64) / count, 11)
        same = _is_same(rows[more], q[more] * count, finer, kind.rounding)
        step[more[same]] = finer[same]
    return step, np.zeros_like(step), fits


def scales_of(
    rows: Float32Array, numbers: Float64Array, rounding: str = "float32"
) -> tuple[Float32Array, NDArray[np.bool_]]:
    """Return the scale of each block that maps numbers [B, n] to the rows, and whether it does exactly.

    The scale has as few bits as possible.
    """
    (below, above), size = half_units(rows, rounding), np.abs(numbers)
    has_sign = (np.sign(numbers) == np.sign(rows)).all(1)
    divisor = np.where(size > 0, size, 1)
    low = ((np.abs(rows) - below) / divisor).max(1, where=size > 0, initial=0)
    high = ((np.abs(rows) + above) / divisor).min(1, where=size > 0, initial=np.inf)
    fits = np.zeros(len(rows), bool)
    middle = np.where(np.isfinite(high), (low + high) / 2, 1)
    step = middle.astype(np.float32)
    may_fit = has_sign & (low <= high) & (middle > 0)
    for bits in SHORT:
        left = np.flatnonzero(may_fit & ~fits)
        if not len(left):
            break
        tried = short(middle[left], bits)
        same = _is_same(rows[left], numbers[left], tried, rounding)
        step[left[same]], fits[left[same]] = tried[same], True
    return step, fits


def _with_minimum(
    rows: Float32Array, q: Float64Array, width: Float64Array, kind: Kind
) -> tuple[Float32Array, Float32Array, NDArray[np.bool_]]:
    """Return steps d and minima m for which q * d + m are the numbers of each block, and whether they are.

    If no pair is exact, one within ``_MINIMUM_ERROR`` is accepted.
    """
    if kind.rounding != "float32":
        return rounded_with_minimum(rows, q, width, kind.rounding)
    (_, half), largest = half_units(rows, kind.rounding), np.abs(rows).max(1)
    step, minimum = width.astype(np.float32), rows.min(1)
    fits, is_exact = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    near = np.abs(rows - (q * width[:, None] + minimum[:, None])).max(1) <= 8 * _MINIMUM_ERROR * largest
    most = q.max(1)
    room = np.where(most <= _MOST_OFFSET, np.exp2(np.ceil(np.log2(most + 1))) - 1 - most, 0)
    for bits in SHORT:
        for offset in range(kind.steps):  # integer of the least number, which need not be 0
            left = np.flatnonzero(near & ~is_exact & (offset <= room))
            if not len(left):
                break
            tried = short(width[left], bits)
            rest = rows[left] - (q[left] + offset) * tried[:, None].astype(np.float64)
            bounds = (rest - half[left]).max(1), (rest + half[left]).min(1)
            middle = (bounds[0] + bounds[1]) / 2
            for fewer in SHORT:
                at = short(middle, fewer)
                rebuilt = _sums(q[left] + offset, tried, at, kind.rounding)
                error = np.abs(rebuilt - rows[left]).max(1)
                better = (~fits[left] & (error <= _MINIMUM_ERROR * largest[left])) | (
                    ~is_exact[left] & (error == 0)
                )
                to = left[better]
                step[to], minimum[to], fits[to] = tried[better], at[better], True
                is_exact[left[error == 0]] = True
            if bits == SHORT[-1] and offset == 0:
                break  # a step of 24 bits does not determine the integer of 0
    return step, minimum, fits


def _sums(q: Float64Array, step: Float32Array, minimum: Float32Array, rounding: str) -> Float32Array:
    sums = q.astype(np.float32) * step[:, None] + minimum[:, None]
    return rounded(sums, rounding)


def _is_same(
    rows: Float32Array, numbers: Float64Array, step: Float32Array, rounding: str
) -> NDArray[np.bool_]:
    products = rounded(numbers.astype(np.float32) * step[:, None], rounding)
    return np.asarray((products == rows).all(1))
