"""AdaQuant (arXiv 2006.10518): gradient steps on weights that pass through their rounding unchanged.

A continuous copy of the weights is moved by Adam along the gradient of the error of its rounding (a
straight-through estimator). Gradients come from the hessian, and are updated for the few weights whose
rounding changes in an iteration: less than a matrix product per iteration, and no samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ops._library import walk_rows
from ops.array_types import Float32Array, Float64Array
from ops.grids.fixed import Grid
from ops.rounding.adam import step_factor
from ops.rounding.quadratic import Quadratic
from ops.rounding.row_space import RowQuadratic
from ops.subnormals import keeps_subnormals

LEARNING_RATE = 0.002  # steps of the grid in an iteration

PATIENCE = 100  # iterations without a better rounding of an output before an early stop

_INTEGERS = 21, 21  # bits of a mantissa and its least exponent: whole numbers up to 2^22


@keeps_subnormals
def adaquant(
    quadratic: Quadratic | RowQuadratic,
    grid: Grid,
    *,
    iterations: int = 1000,
    learning_rate: float = LEARNING_RATE,
    early_stop: bool = False,
) -> Float64Array:
    """Return weights [..., N, K] on the grid: for each output the best of all iterations.

    ``learning_rate`` is in steps of the grid per iteration. Weights jump between neighbours and pass good
    combinations early and late, so that it need not decrease. ``early_stop`` ends an output after
    :data:`PATIENCE` iterations without improvement. Arithmetic is in float32, with one order of sums, on one
    thread. No random numbers.
    """
    patience = PATIENCE if early_stop else iterations
    return grid.round(_walk(quadratic, grid, iterations, learning_rate, patience, learn_scale=False)[0])


@keeps_subnormals
def learn_scale(
    quadratic: Quadratic | RowQuadratic,
    grid: Grid,
    *,
    iterations: int = 1000,
    learning_rate: float = LEARNING_RATE,
) -> Grid:
    """Return the grid of integers with the scales that AdaQuant learns along with the weights.

    There is one float32 scale for each output. In each iteration it is the best one for all weights of the
    output, so that the gradient is that of both. Raises ValueError for blocks and floating numbers.
    """
    if grid.element is not None or grid.scale.shape[-1] != 1:
        raise ValueError("only integers have a scale to tune; blocks and floating numbers have none")
    _, learned = _walk(quadratic, grid, iterations, learning_rate, iterations, learn_scale=True)
    scale = learned.astype(np.float32)
    return replace(grid, scale=scale.astype(np.float64))


def _walk(
    quadratic: Quadratic | RowQuadratic,
    grid: Grid,
    iterations: int,
    rate: float,
    patience: int,
    *,
    learn_scale: bool,
) -> tuple[Float64Array, Float64Array]:
    """Return the best weights [..., N, K], on the grid up to float32 rounding, and the scale of a row.

    A row ends after ``patience`` iterations without improvement.
    """
    target = quadratic.target
    unit = grid.scale.max(-1, keepdims=True)  # affects neither a row's best weights nor Adam's steps
    step_size = rate * (1.0 if grid.element is None else grid.step(target) / grid.scale)
    u, weights = _rows(target / grid.scale, target.shape), _rows(target / unit, target.shape)
    per_weight = (grid.scale / unit, grid.lowest, grid.highest, step_size)
    fixed = np.stack(
        [_rows(np.asarray(values), target.shape) for values in per_weight], axis=1
    )  # [G, 4, N, K]
    best, more = np.zeros_like(weights), np.ones(weights.shape[:2])
    element = grid.element
    bits = _INTEGERS if element is None else (element.mantissa_bits, 1 - element.bias)
    scratch = np.empty((6, target.shape[-1]), np.float32), np.empty(target.shape[-1], np.uintp)
    factors = step_factor(np.arange(1, iterations + 1))
    for g, hessian in enumerate(_normalized(quadratic.hessian)):
        rows = fixed[g], factors, u[g], weights[g], best[g], more[g]
        walk_rows(hessian, *rows, *scratch, *bits, patience, learn_scale)
    scale = unit * more.reshape(unit.shape)
    return best.reshape(target.shape).astype(np.float64) * scale, scale


def _rows(part: NDArray[np.floating], shape: tuple[int, ...]) -> Float32Array:
    """Return a part of the grid, or weights, for each group: [G, N, K]."""
    rows = np.broadcast_to(part, shape).reshape(-1, *shape[-2:])
    return np.array(rows, np.float32, order="C")


def _normalized(hessian: Float64Array) -> Float32Array:
    """Return the hessian of each group [G, K, K] scaled to a largest number of 1, within float32's range."""
    largest = np.abs(hessian).max((-2, -1), keepdims=True)
    scaled = hessian / np.where(largest > 0, largest, 1.0)
    return np.array(scaled.reshape(-1, *hessian.shape[-2:]), np.float32, order="C")
