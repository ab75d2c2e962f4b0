"""Factors of positive definite matrices in blocks. Oracle: NumPy, which multiplies and solves."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ops.grids import weight_grid
from ops.rounding import LayerProblem, gptq, quadratic
from ops.rounding.factors import AT_ONCE, Factors
from ops.rounding.quadratic import OrderedHessian
from tests.helpers.layer_problems import make_layer

SIZES = [1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE - 5]
random = np.random.default_rng(0)


def _matrix(size: int, groups: int = 2) -> NDArray[np.float64]:
    rows = random.standard_normal((groups, 2 * size, size))
    rows[:, :, : size // 8] *= 30  # some inputs are far larger, as in decoders
    found = rows.transpose(0, 2, 1) @ rows
    return np.asarray(found + 0.01 * np.eye(size))


@pytest.mark.parametrize("size", SIZES)
def test_factors_make_the_matrix_and_solve_its_equations(size: int) -> None:
    matrix, right = _matrix(size), random.standard_normal((2, size, 7))
    found = Factors.of(matrix)
    np.testing.assert_array_equal(found.unit, np.triu(found.unit))
    np.testing.assert_array_equal(np.diagonal(found.unit, axis1=1, axis2=2), 1)
    made = (found.unit * found.diagonal[:, None]) @ found.unit.transpose(0, 2, 1)
    np.testing.assert_allclose(made, matrix, rtol=1e-10, atol=1e-10 * np.abs(matrix).max())
    expected = np.linalg.solve(matrix, right)
    np.testing.assert_allclose(found.solve(right), expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())
    short = found.solve(right.astype(np.float32))
    assert short.dtype == np.float32
    np.testing.assert_allclose(short, expected, atol=1e-3 * np.abs(expected).max())


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    matrix = _matrix(2 * AT_ONCE)
    matrix[1, 3, 3] = -1
    with pytest.raises(np.linalg.LinAlgError):
        Factors.of(matrix)


@pytest.mark.parametrize("size", SIZES)
def test_a_hessian_in_order_is_the_same_hessian(size: int) -> None:
    matrix = _matrix(size)
    ordered = OrderedHessian.of(matrix)
    assert (np.diff(np.diagonal(ordered.matrix, axis1=1, axis2=2).mean(0)) <= 0).all()
    np.testing.assert_array_equal(ordered.hessian, matrix)
    right = random.standard_normal((2, size, 3))
    expected = np.linalg.solve(matrix, right)
    np.testing.assert_allclose(ordered.solve(right), expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


def test_float32_finds_nearly_the_weights_of_float64_and_some_outputs_those_of_all() -> None:
    weight, problem = make_layer((1, 12, 1, 2 * AT_ONCE))
    short = LayerProblem(problem.weight.astype(np.float32), problem.gram, problem.cross)
    grid = weight_grid(weight, "int4")
    form, other = (quadratic(one, 0.1, shift=True) for one in (problem, short))
    found, near = gptq(form, grid), gptq(other, grid)
    assert near.dtype == np.float32
    assert form.error(near.astype(np.float64)) == pytest.approx(form.error(found), rel=0.02)
    part = slice(None, None, 5)
    np.testing.assert_array_equal(gptq(form.of_outputs(part), grid.rows(part)), found[:, part])
