"""Read boxes and scores from the columns of one output, of detectors without non-maximum suppression."""

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
    """The layout of an output [..., n, columns] whose rows begin with the four numbers of a box.

    ``transposed``: the output is [..., columns, n]. ``numbered``: a score and a class number follow the box,
    instead of a score for each class. ``centered``: boxes are center x and y, width and height, instead of
    corners.
    """

    transposed: bool
    numbered: bool
    centered: bool

    @classmethod
    def of(cls, array: AnyArray) -> BoxColumns | None:
        """Return the layout of an output of a float model; None if it is not of boxes.

        Columns are the last axis, or the one before it if there are more boxes than columns. Six columns end
        in a class number if the last one holds only integers. Boxes are corners if for most of them the
        second corner is right of and below the first. Scores are from 0 to 1.
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
        """Return corners [n, 4], scores [n] and class numbers [n] of such an output; NaN counts as 0."""
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
