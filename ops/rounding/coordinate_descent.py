"""Coordinate descent on a grid (QuantEase, arXiv 2309.01885; COMQ, arXiv 2403.07134).

One input after another, the weights of that input are set to the best numbers of the grid while all others
stay fixed. No step increases the error.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import FloatArray
from ops.grids.fixed import Grid
from ops.rounding.input_order import blocks, inputs_first, outputs_first
from ops.rounding.quadratic import Descent, Quadratic
from ops.rounding.round_block import round_block
from ops.rounding.row_space import RowDescent, RowQuadratic
from ops.subnormals import keeps_subnormals


@keeps_subnormals
def coordinate_descent(
    quadratic: Quadratic | RowQuadratic, grid: Grid, start: FloatArray, *, sweeps: int = 1
) -> FloatArray:
    """Return weights [..., N, K] on the grid whose error is not above that of ``start``, also on the grid.

    Ends early when a sweep changes nothing.
    """
    order = quadratic.order
    weights = inputs_first(start, order)
    descent = quadratic.descent(inputs_first(quadratic.target, order) - weights)
    for _ in range(sweeps):
        if not _sweep(descent, grid, order, weights):
            break
    return outputs_first(weights, order)


def _sweep(
    descent: Descent | RowDescent,
    grid: Grid,
    order: np.ndarray[tuple[int], np.dtype[np.intp]],
    weights: FloatArray,
) -> bool:
    """Visit every input once, in place; return whether anything changed."""
    changed = False
    for block in blocks(len(order)):
        hessian = descent.near(block)
        curvature = np.diagonal(hessian, axis1=-2, axis2=-1)
        best = weights[..., block, :] + descent.slope(block) / curvature[..., None]
        near = -hessian / curvature[..., None, :]
        weights[..., block, :], change = round_block(grid, order[block], best, weights[..., block, :], near)
        if change.any():
            changed = True
            descent.add(block, change)
    return changed
