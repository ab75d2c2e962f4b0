"""Oracle: sums with the whole Gram matrix, of inputs whose covariance is diagonal."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.finetune.diagonal_gram import DiagonalStats
from transforms.finetune.gram import GramStats

random = np.random.default_rng(0)
SIGNS = np.array([[1 - 2 * (bin(i & k).count("1") % 2) for k in range(1, 6)] for i in range(8)], np.float64)
"""Columns that are orthogonal to each other and to ones."""


def _rows(groups: int) -> np.ndarray:
    return SIGNS[None] * random.uniform(0.5, 2, (groups, 1, 5)) + random.standard_normal((groups, 1, 5))


def test_errors_are_those_of_the_whole_matrix() -> None:
    rows, weight, bias = _rows(2), random.standard_normal((2, 3, 5)), random.standard_normal((2, 3))
    made = rows @ weight.transpose(0, 2, 1) + bias[:, None]
    whole, diagonal = GramStats.zeros(2, 3, 5), DiagonalStats.of_weight(weight)
    for part in (slice(0, 5), slice(5, 8)):
        whole.add(rows[:, part], made[:, part])
        diagonal.add(rows[:, part], made[:, part])
    other, moved = weight + 0.1 * random.standard_normal(weight.shape), bias + 0.1
    np.testing.assert_allclose(diagonal.error(other, moved), whole.error(other, moved))
    np.testing.assert_allclose(diagonal.error(other), whole.error(other))
    np.testing.assert_allclose(diagonal.bias(other), whole.bias(other))
    np.testing.assert_allclose(diagonal.centred().yy, whole.centred().yy)
    doubled = diagonal + diagonal
    np.testing.assert_allclose(doubled.error(other, moved), 2 * whole.error(other, moved))


def test_rows_that_are_not_finite_are_left_out() -> None:
    rows, weight = _rows(1), random.standard_normal((1, 3, 5))
    made = rows @ weight.transpose(0, 2, 1)
    clean, spoilt = DiagonalStats.of_weight(weight), DiagonalStats.of_weight(weight)
    clean.add(rows[:, 1:], made[:, 1:])
    rows[0, 0, 2] = np.inf
    spoilt.add(rows, made)
    for name in ("count", "x", "y", "xx", "yy"):
        np.testing.assert_allclose(getattr(spoilt, name), getattr(clean, name))


@pytest.mark.parametrize("counts", [np.ones(8), np.arange(1.0, 9.0)])
def test_rows_may_count_several_times(counts: np.ndarray) -> None:
    rows, weight = _rows(1), random.standard_normal((1, 2, 5))
    made = rows @ weight.transpose(0, 2, 1)
    weighted, repeated = DiagonalStats.of_weight(weight), DiagonalStats.of_weight(weight)
    weighted.add(rows, made, counts)
    repeated.add(np.repeat(rows, counts.astype(int), 1), np.repeat(made, counts.astype(int), 1))
    np.testing.assert_allclose(weighted.error(weight * 1.1), repeated.error(weight * 1.1))
