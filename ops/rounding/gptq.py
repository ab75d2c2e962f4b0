"""GPTQ (arXiv 2210.17323): weights are rounded input by input, and the remaining ones compensate.

The objective is the paper's, |W X - W' X|^2 = tr((W - W') H (W - W')^T) with H = X X^T, which
:mod:`ops.rounding.quadratic` makes of samples; it also adds d I to H, which the paper calls dampening.

The update of Optimal Brain Quantization, on which the paper builds, rounds the weights of one input and
corrects those of all inputs that are left, by a row of H^-1; then the input is taken out of H^-1. The paper's
algorithm (its Cholesky reformulation) reads these rows from a Cholesky factor of H^-1 that is computed
beforehand. Here it is a factor of H itself. With H = U D U^T, U unit upper triangular, and
e = target - rounded, the objective is

    sum over inputs j of D_j |e_j + sum_{i<j} e_i U_ij|^2.

Rounding target_j + sum_{i<j} e_i U_ij minimizes each term. These are the weights that the update leaves for
input j after all corrections, and no hessian needs to be inverted.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import FloatArray
from ops.grids.fixed import Grid
from ops.rounding.input_order import blocks, inputs_first, outputs_first
from ops.rounding.quadratic import Quadratic
from ops.rounding.round_block import round_block
from ops.rounding.row_space import RowQuadratic
from ops.subnormals import keeps_subnormals


@keeps_subnormals
def gptq(quadratic: Quadratic | RowQuadratic, grid: Grid) -> FloatArray:
    """Return weights [..., N, K] on the grid with a small error, by one pass over the inputs.

    Inputs are visited in the order of the hessian's diagonal, the largest first, which is the same in all
    groups. The weights have the precision of the target.
    """
    # the paper's arbitrary order: one for the weights of all outputs, so that they share one factor of H
    order = quadratic.order
    target = np.ascontiguousarray(inputs_first(quadratic.target, order))
    # its Cholesky reformulation: the factor U, which no rounding changes
    elimination = quadratic.elimination(target.shape[-1])
    rounded = np.zeros_like(target)  # [..., K, N]
    for block in blocks(len(order)):
        place = (..., block, slice(None))
        # its lazy batches of updates: the errors of all blocks before, in one product
        wanted = target[place] - elimination.before(block)
        # the update inside of the block: input j is wanted_j + sum_{i<j} e_i U_ij, rounded
        near = -elimination.near(block)
        rounded[place], change = round_block(grid, order[block], wanted, target[place], near)
        elimination.add(block, change)
    return outputs_first(rounded, order)
