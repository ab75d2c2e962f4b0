"""Inputs rounded one after the other. Oracle: the same in NumPy with Grid.nearest, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from ops.array_types import Float64Array
from ops.grids import weight_grid
from ops.grids.fixed import Grid
from ops.rounding.round_block import round_block
from tests.helpers.layer_problems import nearest


def _expected(
    grid: Grid, inputs: list[int], base: Float64Array, reference: Float64Array, factor: Float64Array
) -> tuple[Float64Array, Float64Array]:
    rounded, change = np.empty_like(base), np.empty_like(base)
    for j, column in enumerate(inputs):
        value = base[..., j, :]
        for i in range(j):
            value = value + factor[..., i, j, None] * change[..., i, :]
        rounded[..., j, :] = nearest(grid, value, column)
        change[..., j, :] = rounded[..., j, :] - reference[..., j, :]
    return rounded, change


@pytest.mark.parametrize(
    "name", ["int4", "int8", "int16", "bfloat16", "float16", "bfp16", "mx6", "mxfp4", "mxfp8_e4m3"]
)
@pytest.mark.parametrize("lead", [(), (1,), (3,)])
def test_rounding_is_that_of_the_grid(name: str, lead: tuple[int, ...]) -> None:
    """Some values lie beyond the grid's limits, some on halves, some are zero."""
    generator = np.random.default_rng(len(lead))
    weight = generator.standard_normal((*lead, 7, 1, 40)).astype(np.float32)
    grid, inputs = weight_grid(weight, name), [3, 39, 0, 17, 18]
    base, reference = 1.5 * generator.standard_normal((2, *lead, 5, 7))
    factor = 0.3 * generator.standard_normal((*lead, 5, 5))
    base[..., 0, :] = nearest(grid, base[..., 0, :], 3) * 1.5
    base[..., 1, 0] = 0.0
    factor[..., 0, 1] = 0.0
    found = round_block(grid, np.array(inputs), base, reference, factor)
    for one, other in zip(found, _expected(grid, inputs, base, reference, factor), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_given_stays_as_it_is() -> None:
    grid = weight_grid(np.ones((2, 1, 3), np.float32), "int8")
    base, reference, factor = np.full((3, 2), 0.33), np.full((3, 2), 0.3), np.full((3, 3), 0.1)
    copies = [base.copy(), reference.copy(), factor.copy()]
    round_block(grid, np.arange(3), base, reference, factor)
    for one, other in zip((base, reference, factor), copies, strict=True):
        np.testing.assert_array_equal(one, other)
