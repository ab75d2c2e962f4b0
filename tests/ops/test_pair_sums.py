"""8-bit sums in saturating pairs, and weights that do not saturate.

Oracles: loops over the definition of PMADDUBSW in whole numbers; every pair of two int8 weights with the
activations 0 and 255, of which sums are largest; a search through all factors of a scale.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ops.integers import quantize, weight_scale
from ops.pair_sums import LARGEST_PAIR, bound_pairs, pair_limits, pair_sums, paired_scale, wide_pairs


def random() -> np.random.Generator:
    """Return the same numbers for each call."""
    return np.random.default_rng(7)


LAYOUTS = [  # shape of a weight, axes of its sum as kernels walk them, axis of its scales
    ((5, 3, 3, 3), (2, 3, 1), 0),
    ((4, 6, 1), (2, 1), 0),
    ((7, 5), (0,), 1),
    ((5, 8), (1,), 0),
    ((2, 6, 3), (1,), None),
]


def _summed_by_hand(activations: list[int], weights: list[int]) -> int:
    total = 0
    for place in range(0, len(weights), 2):
        pair = sum(
            a * w for a, w in zip(activations[place : place + 2], weights[place : place + 2], strict=True)
        )
        total += min(max(pair, -(2**15)), 2**15 - 1)
    return total


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_sums_saturate_as_the_instruction_does(length: int) -> None:
    draw = random()
    activations = draw.choice([0, 1, 200, 255], (3, length)).astype(np.uint8)
    weights = draw.choice([-128, -127, 5, 127], (length, 4)).astype(np.int8)
    expected = [
        [_summed_by_hand(row.tolist(), column.tolist()) for column in weights.T] for row in activations
    ]
    assert pair_sums(activations, weights).tolist() == expected


def test_sums_of_stacks_of_matrices() -> None:
    draw = random()
    activations = draw.integers(0, 256, (2, 3, 6))
    weights = draw.integers(-128, 128, (2, 6, 4)).astype(np.int8)
    made = pair_sums(activations, weights)
    assert all((made[i] == pair_sums(activations[i], weights[i])).all() for i in range(2))


def test_signed_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="activations go from -1 to 0, legal are 0 to 255"):
        pair_sums(np.array([[-1, 0]]), np.zeros((2, 1), np.int8))


def test_the_limit_is_that_of_every_pair() -> None:
    pairs = np.array(list(product(range(-128, 128), repeat=2)), np.int8).T
    ends = np.array(list(product((0, 255), repeat=2)), np.uint8)
    is_exact = (pair_sums(ends, pairs) == ends.astype(np.int64) @ pairs.astype(np.int64)).all(0)
    is_wide = np.array([wide_pairs(pair[:, None], (0,)) for pair in pairs.T]) > 0
    assert (is_exact == ~is_wide).all()
    assert is_exact.any() and is_wide.any()


@pytest.mark.parametrize(("shape", "axes", "axis"), LAYOUTS)
def test_bounded_weights_are_the_nearest_without_wide_pairs(
    shape: tuple[int, ...], axes: tuple[int, ...], axis: int | None
) -> None:
    weights = random().integers(-128, 128, shape).astype(np.int8)
    before = weights.copy()
    bounded = bound_pairs(weights, axes)
    assert (weights == before).all()
    assert wide_pairs(weights, axes) and not wide_pairs(bounded, axes)
    flat, rows = (_rows(array, axes) for array in (weights, bounded))
    for (first, second), (new_first, new_second) in zip(_pairs(flat), _pairs(rows), strict=True):
        beyond = max(0, abs(first + second) - LARGEST_PAIR)
        moved = abs(first - new_first), abs(second - new_second)
        assert sum(moved) == beyond and abs(moved[0] - moved[1]) <= 1
    assert bound_pairs(bounded, axes) is bounded


@pytest.mark.parametrize(("shape", "axes", "axis"), LAYOUTS)
def test_limits_leave_no_wide_pairs(shape: tuple[int, ...], axes: tuple[int, ...], axis: int | None) -> None:
    weights = bound_pairs(random().integers(-127, 128, shape).astype(np.int8), axes)
    limits = pair_limits(weights, axes)
    assert (limits[0] <= weights).all() and (weights <= limits[1]).all()
    assert (limits[0] >= -127).all() and (limits[1] <= 127).all()
    for end in limits:
        assert not wide_pairs(end.astype(np.int8), axes)
    rows = [_pairs(_rows(array, axes)) for array in (weights, *limits)]
    for (first, second), low, high in zip(
        *rows, strict=True
    ):  # nothing is left over, but for the ends of int8
        assert sum(high) == LARGEST_PAIR or 127 in high
        assert sum(low) == -LARGEST_PAIR or -127 in low
        assert first + second in range(sum(low), sum(high) + 1)


def _rows(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    others = [i for i in range(array.ndim) if i not in axes]
    sums = array.transpose(*others, *axes)
    return sums.reshape(-1, int(np.prod([array.shape[i] for i in axes])))


def _pairs(rows: np.ndarray) -> list[tuple[int, int]]:
    return [
        (int(row[i]), int(row[i + 1]) if i + 1 < len(row) else 0)
        for row in rows
        for i in range(0, len(row), 2)
    ]


@pytest.mark.parametrize(("shape", "axes", "axis"), LAYOUTS)
@pytest.mark.parametrize("weighed", [False, True])
def test_a_scale_suits_bounded_weights(
    shape: tuple[int, ...], axes: tuple[int, ...], axis: int | None, weighed: bool
) -> None:
    shape = tuple(8 * size if size > 3 else size for size in shape)
    weights = random().normal(size=shape).astype(np.float32)
    importance = random().uniform(0.1, 10, shape) if weighed else None
    scale = weight_scale(weights, "int8", axis)
    grown = paired_scale(weights, scale, axes, axis, importance=importance)
    assert grown.shape == scale.shape and (grown >= scale).all() and (grown <= 2 * scale).all()
    common = [_error(weights, scale * np.float32(f), axes, axis, importance) for f in np.linspace(1, 2, 26)]
    # each scale by itself does better than one factor for all; expected errors choose, from which the sum of
    # n squares of even errors differs by a share of 0.9 / sqrt(n): one standard deviation
    assert _error(weights, grown, axes, axis, importance) <= (1 + 1.8 / np.sqrt(weights.size)) * min(common)


def _error(
    weights: np.ndarray,
    scale: np.ndarray,
    axes: tuple[int, ...],
    axis: int | None,
    importance: np.ndarray | None,
) -> float:
    codes = bound_pairs(quantize(weights, scale, np.zeros(scale.shape, np.int8), "int8", axis), axes)
    laid = scale if axis is None else scale.reshape([-1 if i == axis else 1 for i in range(weights.ndim)])
    errors = np.square(weights - codes * laid.astype(np.float64)) * (1 if importance is None else importance)
    return float(errors.sum())


def test_scales_without_wide_pairs_stay() -> None:
    weights = random().uniform(-1, 1, (16, 8)).astype(np.float32)
    weights[1::2] = -weights[::2]
    scale = weight_scale(weights, "int8", 1)
    assert paired_scale(weights, scale, (0,), 1) is scale


def test_powers_of_two_stay_such() -> None:
    weights = np.ones((4, 2), np.float32)
    scale = np.full(2, 2.0**-7, np.float32)
    assert paired_scale(weights, scale, (0,), 1, power_of_two=True).tolist() == [2.0**-6] * 2
