"""Recognize the grid on which a float weight already lies, from its numbers alone.

Some lines of a weight show whether there is a grid and its kind: their blocks of 16 numbers have to pass
(:mod:`ops.grids.lattice`), and the largest blocks that still pass are those of the source, or several with
the same scale. All other blocks are then checked, a part of the weight at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float32Array
from ops.grids.half_units import ROUNDINGS, rounded
from ops.grids.lattice import BlockGrids, Kind, fit_blocks
from ops.grids.rounded_integers import integers_of
from ops.grids.scattered import ROWS, scattered_orders
from ops.grids.small_floats import ELEMENTS, SMALL_FLOATS, fit_floats
from ops.subnormals import keeps_subnormals

LEAST_BLOCK = 16
_BLOCKS = (256, 128, 64, 32, LEAST_BLOCK)
_LINES = 16  # lines that decide the kind, and the most that are added to them
_FIRST_LINES, _FIRST_NUMBERS = 4, 128  # on which most weights without a grid fail
_ELEMENTS = 1 << 19  # numbers to process at a time
_TRIES = 8
_MATRIX_RANK = 2

_BITS = 2, 4, 8


@dataclass(frozen=True)
class FoundGrid:
    """The grid of a weight, or of a share of its blocks.

    ``step`` and ``minimum`` have one number for each block of ``block`` numbers along ``axis``, in the shape
    of :func:`ops.integer_blocks.scale_shape`, or without blocks one for each index of ``axis``. ``minimum``
    is None for a grid through 0. ``least`` and ``most``: the ends of the integers of a block. ``share``: of
    the blocks on the grid, 1 if all are. ``order``: the indices of ``axis`` in the order of blocks, None if
    adjacent numbers form a block.
    """

    kind: Kind
    axis: int
    block: int
    step: Float32Array
    minimum: Float32Array | None
    least: NDArray[np.int16]
    most: NDArray[np.int16]
    share: float
    order: NDArray[np.intp] | None = None

    @property
    def bits(self) -> int:
        """Bits of the integers in use, or of the 8-bit floats."""
        span = np.maximum(self.most, 0) - np.minimum(self.least, 0)  # without a minimum 0 is a level
        return 8 if self.kind.element else max(1, int(span.max()).bit_length())

    def expanded(self, parameter: AnyArray, shape: tuple[int, ...]) -> AnyArray:
        """Repeat or reshape a step or minimum to broadcast to a weight with a shape."""
        if not self.block:
            return parameter.reshape([-1 if i == self.axis else 1 for i in range(len(shape))])
        places = np.arange(shape[self.axis]) if self.order is None else np.argsort(self.order)
        return np.take(parameter, places // self.block, self.axis)

    def numbers(self, values: Float32Array) -> AnyArray:
        """Return the integers of a weight in int16, or its 8-bit floats; computed in parts."""
        integers = np.empty(values.shape, ELEMENTS.get(self.kind.element, np.int16))
        other = 1 if self.axis == 0 else 0
        together = max(1, _ELEMENTS * values.shape[other] // max(1, values.size))
        for first in range(0, values.shape[other], together):
            at = (slice(None),) * other + (slice(first, first + together),)
            part = values[at].astype(np.float32)
            step = self.expanded(self.step[at] if self.block else self.step, part.shape)
            minimum = None
            if self.minimum is not None:
                minimum = self.expanded(self.minimum[at] if self.block else self.minimum, part.shape)
            if self.kind.element:
                integers[at] = part.astype(np.float64) / step
            else:
                integers[at] = integers_of(part, step, minimum, self.kind.rounding)
        return integers


@dataclass(frozen=True)
class _Lines:
    """A weight as lines along which blocks run: along an axis, or all numbers of each index of another.

    ``order``: of the numbers of a line, or None for that of the weight.
    """

    weight: NDArray[np.floating]
    axis: int
    is_channel: bool
    order: NDArray[np.intp] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        size = self.weight.shape[self.axis]
        count = self.weight.size // size
        return (size, count) if self.is_channel else (count, size)

    def take(self, lines: NDArray[np.intp] | slice) -> Float32Array:
        """Return some of the lines, [m, n]."""
        to = 0 if self.is_channel else self.weight.ndim - 1
        moved = np.moveaxis(self.weight, self.axis, to)
        if self.is_channel:
            taken = moved[lines].reshape(-1, self.shape[1])
        elif self.weight.ndim == _MATRIX_RANK:  # copy only these lines
            taken = moved[lines]
        else:
            taken = moved.reshape(self.shape)[lines]
        if self.order is not None:
            taken = taken[:, self.order]
        return np.ascontiguousarray(taken, np.float32)


@keeps_subnormals
def recognise(weight: NDArray[np.floating], along: int | None = None) -> FoundGrid | None:
    """Return the grid of all blocks of a weight, or of a share of them, or None.

    Of grids along several axes, the one with the fewest scales is returned; for a matrix whose products
    sum ``along`` an axis, the one with blocks or lines there, if it exists. None for vectors, and for
    non-finite numbers.
    """
    if weight.ndim < 2 or not weight.size:
        return None
    best: FoundGrid | None = None
    with np.errstate(all="ignore"):
        for lines in sorted(_directions(weight), key=lambda direction: direction.axis != along):
            if along not in (None, lines.axis) and best is not None and best.share == 1:
                break
            other = _along(lines) if lines.shape[1] >= LEAST_BLOCK else None
            if other is not None and (best is None or _rank(other) > _rank(best)):
                best = other
        if weight.ndim == _MATRIX_RANK and (best is None or best.share < 1):
            best = max([*_scattered(weight), *([best] if best else [])], key=_rank, default=None)
    return best


def _scattered(weight: NDArray[np.floating]) -> Iterator[FoundGrid]:
    """Yield grids of a matrix whose blocks are not contiguous."""
    for axis in range(_MATRIX_RANK):
        count = weight.shape[1 - axis]
        probe = np.unique(np.linspace(0, count - 1, min(count, ROWS)).astype(np.intp))
        for order in scattered_orders(_Lines(weight, axis, is_channel=False).take(probe)):
            found = _along(_Lines(weight, axis, is_channel=False, order=order))
            if found is not None:
                yield found


def _rank(found: FoundGrid) -> tuple[float, int]:
    return found.share, -found.step.size


def _directions(weight: NDArray[np.floating]) -> Iterator[_Lines]:
    """Yield the lines of a matrix, of filters by output or input channel, and of stacks of matrices."""
    if weight.ndim > 2:
        yield from (_Lines(weight, axis, is_channel=True) for axis in (0, 1))
    yield from (_Lines(weight, axis, is_channel=False) for axis in range(weight.ndim))


def _along(lines: _Lines) -> FoundGrid | None:
    """Return the grid of lines; lines that fail show more of its kind."""
    count = lines.shape[0]
    first = lines.take(np.linspace(0, count - 1, min(count, _FIRST_LINES)).astype(np.intp))
    if not _on_any(first[:, :_FIRST_NUMBERS]).any():
        return None
    probe = np.linspace(0, count - 1, min(count, _LINES)).astype(np.intp)
    grid, before = None, None
    for _ in range(_TRIES):
        chosen = _choose(lines, np.unique(probe))
        if chosen is None or chosen == before:
            break
        grid, failing = _whole(lines, *chosen)
        if not len(failing):
            break
        probe, before = np.append(probe, failing[:_LINES]), chosen
    return grid


def _on_any(lines: Float32Array) -> NDArray[np.bool_]:
    """Return for each line whether all of its blocks are on a grid of any kind."""
    on_any = np.zeros(len(lines), bool)
    if np.isfinite(lines).all():
        for kind in _widest(lines):
            on_any[~on_any] = _fit(lines[~on_any], LEAST_BLOCK, kind).fits.reshape((~on_any).sum(), -1).all(1)
            if on_any.all():
                break
    return on_any


def _widest(lines: Float32Array) -> list[Kind]:
    """Return the kinds of which every other is a special case."""
    kinds = _kinds(lines)
    most = {(kind.has_minimum, kind.rounding, kind.element): kind for kind in kinds}
    return list(most.values())


def _kinds(lines: Float32Array) -> list[Kind]:
    """Return the kinds that lines may have, those with the fewest bits first."""
    kinds: list[Kind] = []
    for rounding in ROUNDINGS:
        if np.array_equal(rounded(lines, rounding), lines):
            kinds += [Kind(bits, has_minimum, rounding) for bits in _BITS for has_minimum in (False, True)]
            kinds += [Kind(8, rounding=rounding, element=element) for element in SMALL_FLOATS]
    return kinds


def _choose(lines: _Lines, probe: NDArray[np.intp]) -> tuple[Kind, int] | None:
    """Return the kind of some lines and their block size, 0 for one block per line; None if there is none.

    Lines on no grid are ignored.
    """
    part = lines.take(probe)
    part = part[_on_any(part)]
    kind = next((kind for kind in _kinds(part) if _all_fit(part, LEAST_BLOCK, kind)), None)
    if kind is None or not len(part):
        return None
    float_kinds = [
        Kind(8, rounding=kind.rounding, element=element) for element in SMALL_FLOATS if kind.element
    ]
    alike = [kind, *(other for other in float_kinds if other != kind and _all_fit(part, LEAST_BLOCK, other))]
    if lines.is_channel:
        return next(((candidate, 0) for candidate in alike if _all_fit(part, 0, candidate)), None)
    sizes = [0, *(size for size in _BLOCKS if size < part.shape[1])]
    pairs = ((candidate, size) for size in sizes for candidate in alike)
    return next(pair for pair in pairs if pair[1] == LEAST_BLOCK or _all_fit(part, pair[1], pair[0]))


def _all_fit(lines: Float32Array, block: int, kind: Kind) -> bool:
    few = lines[:1, : max(block, LEAST_BLOCK) if block else None]  # enough to rule out most kinds
    return bool(_fit(few, block, kind).fits.all() and _fit(lines, block, kind).fits.all())


def _fit(lines: Float32Array, block: int, kind: Kind) -> BlockGrids:
    """Return the grids of lines [m, n], [m * B]; a shorter last block is padded with its last number."""
    size = block or lines.shape[1]
    rest = -lines.shape[1] % size
    rows = np.pad(lines, ((0, 0), (0, rest)), mode="edge") if rest else lines
    rows = rows.reshape(-1, size)
    return fit_floats(rows, kind.element, kind.rounding) if kind.element else fit_blocks(rows, kind)


def _whole(lines: _Lines, kind: Kind, block: int) -> tuple[FoundGrid | None, NDArray[np.intp]]:
    """Return the grid of all lines, and the lines with a block that is not on it."""
    count, length = lines.shape
    together = max(1, _ELEMENTS // length)
    block_grids = []
    for first in range(0, count, together):
        part = lines.take(slice(first, first + together))
        block_grids.append(_fit(part, block, kind) if np.isfinite(part).all() else _nothing(part, block))
    fits = np.concatenate([part.fits for part in block_grids]).reshape(count, -1)
    if not fits.any():
        return None, np.arange(count)
    step, minimum, least, most = (
        _laid(lines, np.concatenate([getattr(part, name) for part in block_grids]), block)
        for name in ("step", "minimum", "least", "most")
    )
    is_matrix_line = not block and not lines.is_channel and lines.weight.ndim == _MATRIX_RANK
    axis = 1 - lines.axis if is_matrix_line else lines.axis
    size = block if block or lines.is_channel or is_matrix_line else length
    added = minimum if kind.has_minimum else None
    order = lines.order if size else None
    grid = FoundGrid(kind, axis, size, step, added, least, most, float(fits.mean()), order)
    return grid, np.flatnonzero(~fits.all(1))


def _laid(lines: _Lines, numbers: AnyArray, block: int) -> AnyArray:
    """Return one number for each block in the shape of scales."""
    if lines.is_channel or (not block and lines.weight.ndim == _MATRIX_RANK):
        return numbers
    rest = np.delete(lines.weight.shape, lines.axis)
    return np.ascontiguousarray(np.moveaxis(numbers.reshape(*rest, -1), -1, lines.axis))


def _nothing(lines: Float32Array, block: int) -> BlockGrids:
    """Return the grids of lines with numbers that are not finite."""
    count = len(lines) * (-(-lines.shape[1] // block) if block else 1)
    zeros = np.zeros(count, np.int16)
    return BlockGrids(
        np.ones(count, np.float32), np.zeros(count, np.float32), np.zeros(count, bool), zeros, zeros
    )
