"""Oracle: the definition of an orthogonal matrix, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ops.rotations import Rotation, rotate, rotate_deviations

SIZES = [*range(1, 40), 48, 64, 80, 96, 128, 192, 320, 384, 512, 768, 1000]
ROUNDING = 2.0**-52


@pytest.mark.parametrize("make", [rotate, rotate_deviations])
@pytest.mark.parametrize("size", SIZES)
def test_a_rotation_is_its_own_inverse(make: Rotation, size: int) -> None:
    """Sums of as many products as there are rows: alike ones may round to one side in each of these sums."""
    matrix = make(np.eye(size))
    np.testing.assert_allclose(matrix @ matrix, np.eye(size), rtol=0, atol=(8 + size) * ROUNDING)
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=8 * ROUNDING)


@pytest.mark.parametrize("size", SIZES)
def test_means_stay_where_they_have_to(size: int) -> None:
    found = rotate_deviations(np.eye(size)).sum(0)
    np.testing.assert_allclose(found, 1, rtol=0, atol=(8 + size) * ROUNDING)


@pytest.mark.parametrize("size", SIZES)
def test_each_number_is_spread_over_all(size: int) -> None:
    assert np.abs(rotate(np.eye(size))).max() <= np.sqrt(2 / size) * (1 + 8 * ROUNDING)
    assert size < 4 or np.abs(rotate_deviations(np.eye(size))).max() <= 2.5 / np.sqrt(size)


def test_powers_of_two_have_flat_matrices() -> None:
    np.testing.assert_allclose(np.abs(rotate(np.eye(64))), 1 / 8, rtol=0, atol=0)
