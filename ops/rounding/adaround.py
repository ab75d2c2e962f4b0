"""AdaRound (arXiv 2004.10568): learn to which of its two neighbours on the grid each weight is rounded.

The method of the paper, with V a variable for each weight:

    objective          |W x - W~ x|^2 + lambda f(V) is lowered by Adam
    soft weights       W~ = below + h(V) (above - below), the neighbours on any grid; the paper's are
                       floor(W / s) and one step more
    rectified sigmoid  h(V) = clip(sigmoid(V) (zeta - gamma) + gamma, 0, 1), zeta being 1.1 and gamma -0.1
    regularizer        f(V) = sum 1 - |2 h(V) - 1|^beta, which pulls h to 0 or 1, more strongly as beta falls

Its asymmetric reconstruction feeds W~ with quantized inputs: so does an objective around a shifted target,
which :mod:`ops.rounding.quadratic` makes. The error is a quadratic form of W~, and no step reads samples.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import Float32Array, Float64Array
from ops.grids.fixed import Grid
from ops.rounding.adam import Adam
from ops.rounding.quadratic import Quadratic
from ops.rounding.row_space import RowQuadratic
from ops.rounding.split_sums import product
from ops.subnormals import keeps_subnormals

STRETCH, MARGIN = np.float32(1.2), np.float32(0.1)  # zeta - gamma, and -gamma
WARM_UP = 0.2  # share of the iterations without the regularizer
BETA = 20.0, 2.0  # from, to
WEIGHT = 1.0  # lambda, in errors of one step of an average input


@keeps_subnormals
def adaround(
    quadratic: Quadratic | RowQuadratic,
    grid: Grid,
    *,
    iterations: int = 1000,
    learning_rate: float = 0.05,
    early_stop: bool = False,
) -> Float64Array:
    """Return weights [..., N, K] on the grid, each a neighbour of its target, with a small error.

    A row keeps the nearest rounding if that is better. ``early_stop`` ends when every weight has settled on
    a neighbour, once the regularizer is active. Works on any grid, also floating ones. Arithmetic is in
    float32. No random numbers.
    """
    # both neighbours, and h where W~ is the target
    below, above = grid.neighbours(quadratic.target)
    width = above - below
    fraction = np.clip((quadratic.target - below) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    # errors in units of a row's largest step, so that one lambda and one rate suit all layers
    unit = np.maximum(width.max(-1, keepdims=True), np.finfo(np.float64).tiny)
    start = ((below - quadratic.target) / unit).astype(np.float32)
    hessian = _normalized(quadratic.hessian)
    soft = _SoftRounding(fraction.astype(np.float32), start, (width / unit).astype(np.float32), hessian)
    for i in range(iterations):
        beta = _beta(i / iterations)
        soft.step(np.array(learning_rate, np.float32), beta)
        if early_stop and beta is not None and soft.is_settled:
            break
    # hard roundings, where they are better than the nearest ones
    learned, nearest = np.where(soft.choice() > 0.5, above, below), grid.round(quadratic.target)
    return np.where(quadratic.row_errors(learned) < quadratic.row_errors(nearest), learned, nearest)


class _SoftRounding:
    """V, h(V), and Adam's steps on the objective."""

    def __init__(
        self, fraction: Float32Array, start: Float32Array, width: Float32Array, hessian: Float32Array
    ) -> None:
        """Start with V where h is the ``fraction``; W~ minus the target is ``start`` + h ``width``."""
        share = (fraction + MARGIN) / STRETCH
        self._v = np.log(share / (1 - share))
        self._start, self._width, self._hessian = start, width, hessian
        self._adam = Adam(fraction.shape)

    @property
    def is_settled(self) -> bool:
        """Whether h is 0 or 1 everywhere."""
        h = self.choice()
        return bool(((h == 0) | (h == 1)).all())

    def choice(self) -> Float32Array:
        """Return h, the rectified sigmoid."""
        return np.clip(STRETCH * self._sigmoid() - MARGIN, np.float32(0), np.float32(1))

    def step(self, step_size: Float32Array, beta: float | None) -> None:
        """Make one descent step; without a beta the regularizer is left out."""
        # the rectified sigmoid, and where it is not clipped
        sigmoid = self._sigmoid()
        h = STRETCH * sigmoid - MARGIN
        inside = (h > 0) & (h < 1)
        np.clip(h, 0, 1, out=h)
        # the slope of the objective in h: of the error of soft weights, and of the regularizer
        slope = product(self._start + h * self._width, self._hessian)
        slope *= 2 * self._width
        if beta is not None:
            slope -= np.float32(WEIGHT) * _term_slope(h, np.float32(beta))
        # the slope in V, by the derivative of the rectified sigmoid
        slope *= STRETCH * sigmoid * (1 - sigmoid) * inside
        self._adam.descend(self._v, slope, step_size)

    def _sigmoid(self) -> Float32Array:
        sigmoid: Float32Array = np.reciprocal(1 + np.exp(-self._v), dtype=np.float32)
        return sigmoid


def _term_slope(h: Float32Array, beta: np.float32) -> Float32Array:
    """Return the slope of |2 h - 1|^beta, the term of the regularizer."""
    centred = 2 * h - 1
    return 2 * beta * np.copysign(np.abs(centred) ** (beta - 1), centred)


def _beta(progress: float) -> float | None:
    """Return the exponent of the regularizer, which falls along a cosine; None before it is active."""
    if progress < WARM_UP:
        return None
    high, low = BETA
    return low + (high - low) / 2 * (1 + np.cos(np.pi * (progress - WARM_UP) / (1 - WARM_UP)))


def _normalized(hessian: Float64Array) -> Float32Array:
    """Return the hessian with a mean diagonal of 1."""
    mean = np.diagonal(hessian, axis1=-2, axis2=-1).mean(-1)[..., None, None]
    return np.ascontiguousarray(hessian / mean, np.float32)
