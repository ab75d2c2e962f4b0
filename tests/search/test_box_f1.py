"""F1 of boxes. Oracle: boxes that are counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transforms.search.box_f1 import box_f1

FAR = [[0, 0, 10, 10], [20, 20, 40, 40], [60, 60, 90, 90]]


def outputs(boxes: Any, scores: Any, classes: Any = None) -> dict[str, np.ndarray]:
    found = {"boxes": np.array(boxes, np.float32)[None], "scores": np.array(scores, np.float32)[None]}
    return found if classes is None else found | {"classes": np.array(classes, np.int64)[None]}


THREE = outputs(FAR, [0.9, 0.8, 0.7])


@pytest.mark.parametrize(
    ("made", "f1"),
    [
        (THREE, 1.0),
        (outputs(FAR[:2], [0.9, 0.8]), 2 * 2 / 5),  # one is lost
        (outputs(FAR, [0.9, 0.8, 0.1]), 2 * 2 / 5),  # its score is too low
        (outputs([*FAR, [1, 0, 10, 10]], [0.9, 0.8, 0.7, 0.6]), 1.0),  # of two that overlap the better counts
        (outputs([*FAR, [100, 0, 110, 10]], [0.9, 0.8, 0.7, 0.6]), 2 * 3 / 7),  # one too many
        (outputs([[0, 0, 10, 4], *FAR[1:]], [0.9, 0.8, 0.7]), 2 * 2 / 6),  # IoU 0.4
        (outputs([[0, 0, 10, 6], *FAR[1:]], [0.9, 0.8, 0.7]), 1.0),  # IoU 0.6
        (outputs(np.zeros((0, 4)), np.zeros(0)), 0.0),
    ],
)
def test_boxes_that_are_found_again(made: dict[str, np.ndarray], f1: float) -> None:
    assert box_f1(THREE, made) == pytest.approx(f1)


def test_another_class_is_another_box() -> None:
    scores = [[0.9, 0.1], [0.1, 0.8], [0.1, 0.7]]
    swapped = [row[::-1] for row in scores]
    assert box_f1(outputs(FAR, scores), outputs(FAR, [scores[0], *swapped[1:]])) == pytest.approx(2 / 6)
    numbered = outputs(FAR, [0.9, 0.8, 0.7], [3, 4, 5])
    assert box_f1(numbered, outputs(FAR, [0.9, 0.8, 0.7], [3, 4, 6])) == pytest.approx(4 / 6)


def test_nothing_found_by_both_is_right() -> None:
    none = outputs(FAR, [0.0, 0.1, 0.2])
    assert box_f1(none, none) == 1.0


@pytest.mark.parametrize(
    "made",
    [
        {"y": np.zeros((1, 100, 85), np.float32)},
        {"boxes": np.zeros((1, 3, 4), np.float32), "scores": np.zeros((1, 2), np.float32)},
        {"a": np.zeros((1, 3, 4), np.float32), "b": np.zeros((1, 3, 4), np.float32)},
    ],
)
def test_other_outputs_are_refused_in_one_line(made: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"^f1 takes outputs boxes \[n, 4\] and [^\n]*: give a function$"):
        box_f1(made, made)
