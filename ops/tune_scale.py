"""Scales of integer grids that suit a layer's error rather than its weights.

Once weights are rounded, the error is a parabola of each scale, whose least point needs no search (as learned
scales: LSQ, arXiv 1902.08153). But integers then stay as they are. A search rounds anew for each scale, and
finds better ones further away; ops.adaquant.learn_scale moves both at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ops.fixed_grid import Floats, Grid
from ops.gptq import gptq
from ops.quadratic import Quadratic
from ops.subnormals import keeps_subnormals

FACTORS = (1.0, 1.1, 0.9, 0.8, 0.7, 0.6, 0.5)


@keeps_subnormals
def fit_scale(quadratic: Quadratic, grid: Grid, weights: Floats, *, per_channel: bool = True) -> Grid:
    """Return the grid with the scales that make the error of weights [..., N, K] least, their integers kept.

    One scale for each output, or one for all. Scales are float32 numbers; one that would not be positive, or
    whose integers are all 0, stays. Weights must be on the grid. Raises ValueError for blocks and floating
    numbers.
    """
    check_scale(grid)
    integers = np.rint(weights / grid.scale)
    pull = integers @ quadratic.hessian
    axis = -1 if per_channel else None
    wanted = np.sum(pull * quadratic.target, axis=axis, keepdims=True)
    power = np.sum(pull * integers, axis=axis, keepdims=True)
    fits = (wanted > 0) & (power > 0)
    best = np.where(fits, wanted, 1.0) / np.where(fits, power, 1.0)
    return replace(grid, scale=np.where(fits, best.astype(np.float32), grid.scale))


@keeps_subnormals
def search_scale(
    quadratic: Quadratic, grid: Grid, *, per_channel: bool = True, factors: Sequence[float] = FACTORS
) -> Grid:
    """Return the grid with those of several scales on which GPTQ makes the least error.

    Scales are the grid's times ``factors``, as float32 numbers; the first of equals. One factor for each
    output, or one for all. Raises ValueError for blocks and floating numbers.
    """
    check_scale(grid)
    scales = [(factor * grid.scale).astype(np.float32).astype(np.float64) for factor in factors]
    errors = [quadratic.row_errors(gptq(quadratic, replace(grid, scale=scale))) for scale in scales]
    if not per_channel:
        errors = [np.full_like(error, error.sum()) for error in errors]
    best = np.argmin(errors, axis=0)
    return replace(grid, scale=np.choose(best, scales))


def check_scale(grid: Grid) -> None:
    """Raise ValueError for a grid that has no scale to tune, of blocks and floating numbers."""
    if grid.element is not None or grid.scale.shape[-1] != 1:
        raise ValueError("only integers have a scale to tune, blocks and floating numbers have none")
