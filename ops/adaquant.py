"""AdaQuant (arXiv 2006.10518): gradient steps on weights that pass through their rounding unchanged.

A continuous copy of the weights is moved by Adam along the gradient of the error of its rounding (a straight-
through estimator). Gradients come from the hessian: one matrix product an iteration, however many samples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ops.adam import Adam, Singles
from ops.fixed_grid import Floats, Grid, round_floating
from ops.quadratic import Quadratic
from ops.steady_product import steady_product

AT_ONCE = 1 << 16  # weights that fit a processor's inner caches, with the arrays that belong to them
LEAST_ROWS = 64  # that a matrix product needs to be quick
PATIENCE = 100  # iterations without a better row, after which an early stop comes


def adaquant(
    quadratic: Quadratic,
    grid: Grid,
    *,
    iterations: int = 1000,
    learning_rate: float = 0.002,
    early_stop: bool = False,
) -> Floats:
    """Return weights [..., N, K] on the grid: of each output the best of all iterations.

    ``learning_rate`` is in steps of the grid an iteration. Weights jump to and fro between neighbours, and
    come by good combinations early and late, so that it need not fall. ``early_stop`` ends after
    :data:`PATIENCE` iterations in which no output got better. Arithmetic is in float32. No random
    numbers.
    """
    hessian = _single(quadratic.hessian / np.abs(quadratic.hessian).max())
    best = np.empty_like(quadratic.target)
    together = max(LEAST_ROWS, AT_ONCE * best.shape[-2] // best.size)
    for start in range(0, best.shape[-2], together):
        rows = slice(start, start + together)
        walk = _Walk(quadratic.target[..., rows, :], hessian, grid.rows(rows), learning_rate)
        for _ in range(iterations):
            walk.step()
            if early_stop and walk.idle >= PATIENCE:
                break
        best[..., rows, :] = walk.best_weights()
    return grid.round(best)


class _Walk:
    """The continuous weights in units of the grid's scale, and the best that they were rounded to.

    The scale of a whole row changes neither where its error is least nor Adam's steps, so that it is left out
    where it is the only one. ``idle`` counts the iterations since a row was last better than ever.
    """

    def __init__(self, target: Floats, hessian: Singles, grid: Grid, learning_rate: float) -> None:
        self._grid, self._hessian = grid, hessian
        self._scale = None if grid.scale.shape[-1] == 1 else _single(grid.scale / _row_scale(grid))
        self._target = _single(target / (grid.scale if self._scale is None else _row_scale(grid)))
        self._u = _single(target / grid.scale)
        steps = 1.0 if grid.element is None else grid.step(target) / grid.scale
        self._pace = np.multiply(steps, learning_rate, dtype=np.float32)
        self._limits = _uniform(grid.lowest), _uniform(grid.highest)
        self._adam = Adam(self._u.shape)
        self._rounded, self._difference, self._slope, self._scratch = (
            np.empty_like(self._u) for _ in range(4)
        )
        self.idle = 0
        self._best = np.zeros_like(self._u)
        self._least = np.full((*self._u.shape[:-1], 1), np.inf, np.float32)

    def step(self) -> None:
        """Round, see whether rows are better than ever, and go one step down."""
        np.maximum(self._u, self._limits[0], out=self._u)
        np.minimum(self._u, self._limits[1], out=self._u)
        rounded = self._rounded
        self._round()
        if self._scale is None:
            np.subtract(rounded, self._target, out=self._difference)
        else:
            np.multiply(rounded, self._scale, out=self._difference)
            self._difference -= self._target
        steady_product(self._difference, self._hessian, self._slope, self._scratch)
        self._keep(rounded)
        self._adam.descend(self._u, self._slope, self._pace)

    def best_weights(self) -> Floats:
        """Return the best of all rows, in units of the weights."""
        return self._best.astype(np.float64) * self._grid.scale

    def _round(self) -> None:
        if self._grid.element is None:
            np.rint(self._u, out=self._rounded)
        else:
            round_floating(self._u, self._grid.element, out=self._rounded)

    def _keep(self, rounded: Singles) -> None:
        errors = np.einsum("...nk,...nk->...n", self._difference, self._slope)[..., None]
        better = errors < self._least
        self.idle += 1
        if better.any():
            self.idle = 0
            np.copyto(self._best, rounded, where=better)
            np.copyto(self._least, errors, where=better)


def _row_scale(grid: Grid) -> Floats:
    return grid.scale.max(-1, keepdims=True)


def _uniform(limits: Floats) -> Singles:
    """Return one number where all are equal, which is quicker to compare with."""
    first = limits.flat[0]
    return _single(np.asarray(first) if (limits == first).all() else limits)


def _single(x: NDArray[np.floating]) -> Singles:
    return np.asarray(x, np.float32, order="C")
