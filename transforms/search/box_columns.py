"""Boxes in columns of one output beside their scores: of detectors that leave the suppression to the user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray

_CORNERS = 4
_WITH_CLASS = 6
"""Columns of x1, y1, x2, y2, score and class number."""


@dataclass(frozen=True)
class BoxColumns:
    """What the columns of an output [..., n, columns] are: four of a box, and what follows.

    ``transposed``: it is [..., columns, n]. ``numbered``: a score and a class number follow, instead of the
    score of each class. ``centered``: boxes are x, y of the middle, width and height, instead of corners.
    """

    transposed: bool
    numbered: bool
    centered: bool

    @classmethod
    def of(cls, array: AnyArray) -> BoxColumns | None:
        """Return the columns of what a float model makes; None for other outputs.

        Columns come last, or before more boxes than there are columns. Six columns whose last holds integers
        alone end in a class number. Boxes are corners where most have the second to the right of the first
        and below it. Scores are from 0 to 1.
        """
        if array.ndim < 2 or array.ndim > 3 or (array.ndim == 3 and len(array) != 1):
            return None
        count, columns = array.shape[-2:]
        transposed = array.ndim == 3 and columns != _WITH_CLASS and _CORNERS < count < columns
        if (count if transposed else columns) <= _CORNERS:
            return None
        rows = _rows(array, transposed=transposed)
        last = rows[:, -1]
        numbered = rows.shape[1] == _WITH_CLASS and bool((last == np.round(last)).all())
        scores = rows[:, _CORNERS : _CORNERS + 1 if numbered else None]
        if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
            return None
        are_corners = (rows[:, 2] >= rows[:, 0]) & (rows[:, 3] >= rows[:, 1])
        return cls(transposed, numbered, centered=bool(2 * are_corners.sum() < len(rows)))

    def read(self, array: AnyArray) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Return corners [n, 4], scores [n] and class numbers [n] of such an output; what is NaN is 0."""
        rows = _rows(array, transposed=self.transposed)
        boxes, scores = rows[:, :_CORNERS], rows[:, _CORNERS:]
        if self.centered:
            middle, half = boxes[:, :2], boxes[:, 2:] / 2
            boxes = np.concatenate([middle - half, middle + half], axis=1)
        if self.numbered:
            return boxes, scores[:, 0], np.round(scores[:, 1]).astype(np.int64)
        return boxes, scores.max(axis=1), scores.argmax(axis=1).astype(np.int64)


def _rows(array: AnyArray, *, transposed: bool) -> NDArray[np.float64]:
    rows = np.nan_to_num(array.astype(np.float64)).reshape(array.shape[-2:])
    return rows.T if transposed else rows
