"""F1 of boxes: how many boxes of the float model another model detects, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.search.box_columns import BoxColumns
from transforms.search.output_metrics import Outputs, is_float_array

LEAST_SCORE, OVERLAP, SAME_BOX = 0.3, 0.45, 0.5
"""Least score of a box that counts, largest IoU of two boxes that both count, least IoU of a match."""


@dataclass(frozen=True)
class Boxes:
    """Detections: corners x1, y1, x2, y2 [n, 4], scores [n], and class numbers [n]."""

    corners: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]


def box_f1(expected: Outputs, found: Outputs) -> float:
    """Return F1 of the boxes that two models detect in one sample: 1 if neither detects any.

    The outputs are corners of boxes [..., n, 4], scores [..., n] or [..., n, classes], and with the former
    optional class numbers [..., n] of integers; or one output with all of it in columns, [n, 4 + classes],
    [4 + classes, n] or [n, 6] with a score and a class number, whose layout is that of the float model
    (:mod:`transforms.search.box_columns`). Raises ValueError for other outputs.
    """
    name, columns = _columns(expected)
    return f1_of(*(detections(outputs, name, columns) for outputs in (expected, found)))


def f1_of(first: Boxes, second: Boxes) -> float:
    """Return F1 of two sets of detections, matched one to one within a class, highest scores first."""
    count = len(first.scores) + len(second.scores)
    if not count:
        return 1.0
    free = set(range(len(first.scores)))
    matched = 0
    for place in np.argsort(-second.scores, kind="stable"):
        overlaps = _overlap(second.corners[place], first.corners)
        able = [i for i in free if first.classes[i] == second.classes[place] and overlaps[i] >= SAME_BOX]
        if able:
            free.remove(max(able, key=lambda i: overlaps[i]))
            matched += 1
    return 2 * matched / count


def detections(outputs: Outputs, name: str = "", columns: BoxColumns | None = None) -> Boxes:
    """Return the boxes of at least ``LEAST_SCORE``, after non-maximum suppression.

    ``columns``: the layout of the output ``name``, if one output has everything.
    """
    corners, scores, classes = _parts(outputs) if columns is None else columns.read(outputs[name])
    confident = scores >= LEAST_SCORE
    return suppressed(Boxes(corners[confident], scores[confident], classes[confident]))


def suppressed(boxes: Boxes) -> Boxes:
    """Return boxes without those that overlap a better one of their class (non-maximum suppression)."""
    rest, best = np.argsort(-boxes.scores, kind="stable"), list[int]()
    while rest.size:
        first, remaining = int(rest[0]), rest[1:]
        best.append(first)
        is_same = boxes.classes[remaining] == boxes.classes[first]
        rest = remaining[~(is_same & (_overlap(boxes.corners[first], boxes.corners[remaining]) > OVERLAP))]
    return Boxes(boxes.corners[best], boxes.scores[best], boxes.classes[best])


def _columns(expected: Outputs) -> tuple[str, BoxColumns | None]:
    """Return the name and layout of the only output of a floating type, if it has boxes and scores."""
    names = [name for name, array in expected.items() if is_float_array(array)]
    return (names[0], BoxColumns.of(expected[names[0]])) if len(names) == 1 else ("", None)


def _parts(outputs: Outputs) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    floats = {name: array for name, array in outputs.items() if is_float_array(array)}
    sizes = {name: array.size for name, array in floats.items() if array.ndim >= 2 and array.shape[-1] == 4}
    boxes = [name for name, size in sizes.items() if size == max(sizes.values())]
    if len(boxes) == 1:  # scores of four boxes may have a last axis of four, too
        corners = np.nan_to_num(floats[boxes[0]].astype(np.float64)).reshape(-1, 4)
        remaining = [array for name, array in floats.items() if name != boxes[0]]
        if len(remaining) == 1 and (scores := _rows(remaining[0], len(corners))) is not None:
            numbers = [array for array in outputs.values() if array.dtype.kind in "iu"]
            best = scores.argmax(axis=1) if scores.size else np.zeros(len(scores), np.int64)
            if scores.shape[1] == 1 and len(numbers) == 1 and numbers[0].size == len(corners):
                best = numbers[0].reshape(-1).astype(np.int64)
            return corners, scores.max(axis=1, initial=0.0), best
    shapes = ", ".join(f"'{name}' {list(array.shape)}" for name, array in outputs.items())
    raise ValueError(
        "f1 takes outputs boxes [n, 4] and scores [n] or [n, classes], or one [n, 4 + classes] or [n, 6] "
        f"with scores from 0 to 1, not {shapes}: give a function"
    )


def _rows(scores: NDArray[Any], count: int) -> NDArray[np.float64] | None:
    """Return scores as [boxes, classes]; None if they are not of ``count`` boxes."""
    if scores.size and (not count or scores.size % count or count not in scores.shape):
        return None
    wide = np.nan_to_num(scores.astype(np.float64))
    return wide.reshape(count, -1) if count and scores.size else np.zeros((count, 1))


def _overlap(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return intersection over union of a box with others, [n]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    both = np.clip(high - low, 0, None).prod(axis=1)
    areas = [np.clip(corners[..., 2:] - corners[..., :2], 0, None).prod(axis=-1) for corners in (box, others)]
    return np.asarray(both / np.maximum(areas[0] + areas[1] - both, np.finfo(float).tiny))
