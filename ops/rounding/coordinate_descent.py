"""Coordinate descent on a grid (QuantEase, arXiv 2309.01885; COMQ, arXiv 2403.07134).

Input after input, the weights of one input are set to the best numbers of the grid while all others stay.
No step increases the error.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import Float64Array
from ops.grids.fixed import Grid
from ops.rounding.gptq import BLOCK
from ops.rounding.quadratic import Quadratic
from ops.rounding.round_block import round_block
from ops.subnormals import keeps_subnormals


@keeps_subnormals
def coordinate_descent(
    quadratic: Quadratic, grid: Grid, start: Float64Array, *, sweeps: int = 1
) -> Float64Array:
    """Return weights [..., N, K] on the grid whose error is not above that of ``start``, also on the grid.

    Ends early when a sweep changes nothing.
    """
    order, hessian = quadratic.order, quadratic.ordered_hessian
    weights = np.moveaxis(start, -1, -2)[..., order, :]
    target = np.moveaxis(quadratic.target, -1, -2)[..., order, :]
    slope = hessian @ (target - weights)  # half the error's descent, [..., K, N]
    for _ in range(sweeps):
        if not _sweep(hessian, grid, order, weights, slope):
            break
    result = np.empty_like(weights)
    result[..., order, :] = weights
    return np.ascontiguousarray(np.swapaxes(result, -1, -2))


def _sweep(
    hessian: Float64Array,
    grid: Grid,
    order: np.ndarray[tuple[int], np.dtype[np.intp]],
    weights: Float64Array,
    slope: Float64Array,
) -> bool:
    """Visit every input once, in place; return whether anything changed."""
    curvature = np.diagonal(hessian, axis1=-2, axis2=-1)[..., None]  # [..., K, 1]
    changed = False
    for start in range(0, len(order), BLOCK):
        block = slice(start, min(start + BLOCK, len(order)))
        best = weights[..., block, :] + slope[..., block, :] / curvature[..., block, :]
        near = -hessian[..., block, block] / np.swapaxes(curvature[..., block, :], -1, -2)
        weights[..., block, :], change = round_block(grid, order[block], best, weights[..., block, :], near)
        if change.any():
            changed = True
            slope -= hessian[..., :, block] @ change
    return changed
