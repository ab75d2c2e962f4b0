"""Oracle: the definition of an orthogonal matrix, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ops.rotations import rotate

SIZES = [*range(1, 40), 48, 64, 80, 96, 128, 192, 320, 384, 512, 768, 1000]
ROUNDING = 2.0**-52


@pytest.mark.parametrize("size", SIZES)
def test_a_rotation_is_its_own_inverse(size: int) -> None:
    """Sums of as many products as there are rows: alike ones may round to one side in each of these sums."""
    matrix = rotate(np.eye(size))
    np.testing.assert_allclose(matrix @ matrix, np.eye(size), rtol=0, atol=(8 + size) * ROUNDING)
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=8 * ROUNDING)


@pytest.mark.parametrize("size", SIZES)
def test_each_number_is_spread_over_all(size: int) -> None:
    assert np.abs(rotate(np.eye(size))).max() <= np.sqrt(2 / size) * (1 + 8 * ROUNDING)


def test_powers_of_two_have_flat_matrices() -> None:
    np.testing.assert_allclose(np.abs(rotate(np.eye(64))), 1 / 8, rtol=0, atol=0)
