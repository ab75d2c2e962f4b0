"""GPTQ (arXiv 2210.17323): weights are rounded input by input, and the remaining ones compensate.

With the hessian as U D U^T, U unit upper triangular, the error of what is rounded is the sum over inputs j of
D_j |e_j + sum_{i<j} e_i U_ij|^2, e_j being the rounding error of the weights of input j. Rounding
target_j + sum_{i<j} e_i U_ij minimizes each term, and no hessian is ever inverted.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import FloatArray
from ops.grids.fixed import Grid
from ops.rounding.quadratic import Quadratic
from ops.rounding.round_block import round_block
from ops.rounding.row_space import BLOCK, RowQuadratic
from ops.subnormals import keeps_subnormals


@keeps_subnormals
def gptq(quadratic: Quadratic | RowQuadratic, grid: Grid) -> FloatArray:
    """Return weights [..., N, K] on the grid with a small error, by one pass over the inputs.

    Inputs go in the order of the hessian's diagonal, the largest first, which is the same in all groups. The
    weights have the precision of the target.
    """
    order = quadratic.order
    target = np.ascontiguousarray(np.moveaxis(quadratic.target, -1, -2)[..., order, :])
    rounded = np.zeros_like(target)  # [..., K, N]
    elimination = quadratic.elimination(target.shape[-1])
    for start in range(0, len(order), BLOCK):
        block = slice(start, min(start + BLOCK, len(order)))
        own = (..., block, slice(None))
        wanted, near = target[own] - elimination.before(block), -elimination.near(block)
        rounded[own], change = round_block(grid, order[block], wanted, target[own], near)
        elimination.add(block, change)
    result = np.empty_like(target)
    result[..., order, :] = rounded
    return np.ascontiguousarray(np.swapaxes(result, -1, -2))
