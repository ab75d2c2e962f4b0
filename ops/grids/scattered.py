"""Find blocks whose columns are not contiguous, from the numbers of a weight.

GPTQ with act-order assigns adjacent scales to inputs of similar importance: which columns share a block is
in a separate table, the same for all rows. Two columns of a block have numbers i * s and j * s in each row,
so that their ratio is that of two small integers; for columns of two blocks that only happens by chance: the
ratios of integers up to 15 fill 2^-14 of the numbers of float32, those up to 255 a fiftieth, and those up to
15 in float16 a third. A column belongs to a block if it holds in nearly all of some rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array

LEAST_GROUP = 16
ROWS = 64  # rows to compare
_FIRST_ROWS = 16  # on which most columns of other blocks fail
_SHARE, _FIRST_SHARE = 0.9, 0.75  # of rows, since a number may be off the grid
_TOLERANCES = ((15, 2.0**-22), (15, 2.0**-10), (255, 2.0**-22))
"""The largest integer, and the relative error of a ratio of rounded products."""


def scattered_orders(rows: Float32Array) -> Iterator[NDArray[np.intp]]:
    """Yield orders of columns [K] in which blocks may be contiguous, one for each kind of integers.

    ``rows`` [R, K] are some rows of the weight. Blocks come in the order of their first columns, a shorter
    one last. Yields nothing if no columns are related by small integers.
    """
    if len(rows) < _FIRST_ROWS or not np.isfinite(rows).all():
        return
    for largest, tolerance in _TOLERANCES:
        groups = _groups(rows, _Ratios(largest, tolerance))
        order = None if groups is None else _joined(*groups)
        if order is not None:
            yield order


class _Ratios:
    """The ratios of integers from 0 to a largest one, with a tolerance for other ratios."""

    def __init__(self, largest: int, tolerance: float) -> None:
        above, below = np.meshgrid(np.arange(largest + 1.0), np.arange(1, largest + 1.0))
        self._ratios, self._tolerance = np.unique(above / below), tolerance
        self._borders = (self._ratios[1:] + self._ratios[:-1]) / 2

    def share(self, columns: Float32Array, other: Float32Array) -> Float64Array:
        """Return the share of rows in which columns [R, m] have such a ratio to another column [R]."""
        is_nonzero = other != 0
        if not is_nonzero.any():
            return np.zeros(columns.shape[1])
        ratios = np.abs(columns[is_nonzero].astype(np.float64) / other[is_nonzero, None])
        nearest = self._ratios[np.searchsorted(self._borders, ratios)]
        return np.asarray((np.abs(ratios - nearest) <= self._tolerance * nearest).mean(0))


def _groups(rows: Float32Array, ratios: _Ratios) -> tuple[list[NDArray[np.intp]], NDArray[np.intp]] | None:
    """Return the columns of each block, and the columns of zeros; None if columns form no blocks."""
    used = (rows != 0).sum(0)
    zeros, left = np.flatnonzero(used == 0), np.flatnonzero(used)
    groups: list[NDArray[np.intp]] = []
    while len(left):
        seed = rows[:, left[np.argmax(used[left])]]
        likely = left[ratios.share(rows[:_FIRST_ROWS][:, left], seed[:_FIRST_ROWS]) >= _FIRST_SHARE]
        group = likely[ratios.share(rows[:, likely], seed) >= _SHARE]
        is_small = len(group) + len(zeros) < LEAST_GROUP
        if not len(group) or (is_small and len(left) > len(group)):
            return None
        groups.append(group)
        left = np.setdiff1d(left, group, assume_unique=True)
    return groups, zeros


def _joined(groups: list[NDArray[np.intp]], zeros: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return all columns, with those of zeros where blocks have room; None if block sizes differ."""
    size = 1 << (max(map(len, groups), default=1) - 1).bit_length()
    groups = sorted(groups, key=lambda group: (-len(group), group[0])) if len(zeros) else groups
    filled = []
    for group in groups:
        room = size - len(group)
        filled.append(np.sort(np.append(group, zeros[:room])))
        zeros = zeros[room:]
    if len(zeros):
        filled.append(zeros)
    filled.sort(key=lambda group: (len(group) < size, group[0]))
    if len(filled) < 2 or any(len(group) != size for group in filled[:-1]):
        return None
    return np.concatenate(filled)
