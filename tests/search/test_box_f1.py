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
        {"y": np.zeros((1, 100, 4), np.float32)},
        {"y": np.full((1, 100, 10), -3, np.float32)},  # logits
        {"y": np.zeros((2, 100, 10), np.float32)},  # two images
        {"boxes": np.zeros((1, 3, 4), np.float32), "scores": np.zeros((1, 2), np.float32)},
        {"a": np.zeros((1, 3, 4), np.float32), "b": np.zeros((1, 3, 4), np.float32)},
    ],
)
def test_other_outputs_are_refused_in_one_line(made: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"^f1 takes outputs boxes \[n, 4\] and [^\n]*: give a function$"):
        box_f1(made, made)


SCORES = [[0.9, 0.1], [0.1, 0.8], [0.1, 0.7]]
NUMBERED = [[0.9, 0], [0.8, 1], [0.7, 1]]


def _in_columns(boxes: Any, scores: Any) -> dict[str, np.ndarray]:
    return {"y": np.concatenate([boxes, scores], axis=1, dtype=np.float32)[None]}


def _centered(boxes: Any) -> np.ndarray:
    low, high = np.split(np.array(boxes, np.float32), 2, axis=1)
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _scattered(classes: int) -> np.ndarray:
    """Boxes around places all over an image, in the form of centers, with scores that do not count."""
    rng = np.random.default_rng(0)
    places = rng.uniform(50, 600, (30, 2)), rng.uniform(5, 20, (30, 2)), rng.uniform(0, 0.2, (30, classes))
    return np.concatenate(places, axis=1).astype(np.float32)


@pytest.mark.parametrize("scores", [SCORES, NUMBERED], ids=["classes", "numbers"])
def test_boxes_and_scores_in_one_output(scores: Any) -> None:
    whole = _in_columns(FAR, scores)
    assert box_f1(whole, whole) == 1
    assert box_f1(whole, {"y": whole["y"][:, :2]}) == pytest.approx(2 * 2 / 5)
    assert box_f1(whole, _in_columns([[0, 0, 10, 4], *FAR[1:]], scores)) == pytest.approx(2 * 2 / 6)
    other = [scores[1], *scores[1:]]  # the first box is of another class
    assert box_f1(whole, _in_columns(FAR, other)) == pytest.approx(2 * 2 / 6)


@pytest.mark.parametrize("transposed", [False, True])
def test_boxes_in_the_form_of_centers(transposed: bool) -> None:
    """As many detectors leave them: a column for each class, all places of an image, transposed or not."""

    def _made(boxes: Any) -> dict[str, np.ndarray]:
        rows = np.concatenate([_scattered(2), np.concatenate([_centered(boxes), SCORES], axis=1)])
        array = rows[None].astype(np.float32)
        return {"y": array.transpose(0, 2, 1) if transposed else array}

    whole = _made(FAR)
    assert box_f1(whole, whole) == 1
    assert box_f1(whole, _made([[0, 0, 10, 4], *FAR[1:]])) == pytest.approx(2 * 2 / 6)
    assert box_f1(whole, _made([[0, 0, 10, 6], *FAR[1:]])) == 1


def test_the_float_model_tells_what_columns_are() -> None:
    """The other's class numbers may be a little off, and its scores beyond 1."""
    whole = _in_columns(FAR, NUMBERED)
    assert box_f1(whole, _in_columns(FAR, [[1.01, 0.004], [0.8, 0.996], [0.7, 1]])) == 1
