"""The objective of tuning: the squared error of a layer's outputs, as a quadratic form of its weights.

With rows x of a layer's inputs and rows y of the wanted outputs, sum |y - W x|^2 is tr(W H W^T) - 2 tr(C
W^T) + P, where H = sum x x^T, C = sum y x^T and P = sum |y|^2. So no solver reads samples. Weights are [...,
N, K], N outputs by K inputs; leading axes are groups, each with its own H.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array, FloatArray
from ops.rounding.factors import AT_ONCE, Factors
from ops.rounding.row_space import Objective, RowProblem, RowQuadratic
from ops.subnormals import keeps_subnormals

Solve = Callable[[Float64Array, FloatArray], FloatArray]


@dataclass(frozen=True)
class LayerProblem:
    """A layer: its float ``weight`` [..., N, K], ``gram`` H [..., K, K] and ``cross`` C [..., N, K].

    The last two are sums over rows in float64, centred if a bias will absorb the means. ``target_power`` is
    P, the sum of the wanted outputs' squares. Targets are computed in the precision of ``weight``, float64
    or float32; H is factorized in float64. Raises ValueError for inconsistent shapes and non-finite numbers.
    """

    weight: FloatArray
    gram: Float64Array
    cross: Float64Array
    target_power: float = 0.0

    def __post_init__(self) -> None:
        *groups, _, inputs = self.weight.shape
        wanted = {"gram": (*groups, inputs, inputs), "cross": self.weight.shape}
        for name, shape in wanted.items():
            array = getattr(self, name)
            if array.shape != shape:
                needed = f"a weight {list(self.weight.shape)} needs {list(shape)}"
                raise ValueError(f"{name} has shape {list(array.shape)}, {needed}")
        for name in ("weight", "gram", "cross"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} holds numbers that are not finite")

    @cached_property
    def residual(self) -> FloatArray:
        """The part of C that the float weights do not explain: C - W0 H [..., N, K]."""
        kind = self.weight.dtype
        return self.cross.astype(kind, copy=False) - self.weight @ self.gram.astype(kind, copy=False)

    @cached_property
    def ordered(self) -> OrderedHessian:
        """H in the order in which solvers visit the inputs."""
        return OrderedHessian.of(self.gram)


@dataclass(frozen=True)
class OrderedHessian:
    """A hessian: its ``matrix`` [..., K, K] has the inputs in the ``order`` in which solvers visit them.

    It is factorized once, for the target and for all grids.
    """

    matrix: Float64Array
    order: NDArray[np.intp]

    @classmethod
    def of(cls, hessian: Float64Array) -> OrderedHessian:
        """Return the hessian in an order that is the same in all groups: the largest mean diagonal first."""
        diagonal = np.diagonal(hessian, axis1=-2, axis2=-1)
        order = np.argsort(-diagonal.reshape(-1, diagonal.shape[-1]).mean(0), kind="stable")
        return cls(np.ascontiguousarray(hessian[..., order[:, None], order]), order)

    def damped(self, damping: float) -> OrderedHessian:
        """Return the ordered H + d I, see :func:`damped`."""
        return OrderedHessian(damped(self.matrix, damping), self.order)

    @cached_property
    def hessian(self) -> Float64Array:
        """The matrix with the inputs in their original order."""
        matrix = np.empty_like(self.matrix)
        matrix[..., self.order[:, None], self.order] = self.matrix
        return matrix

    def matrix_as(self, kind: np.dtype[Any]) -> FloatArray:
        """Return the matrix in float32 or float64."""
        return self.matrix if kind == np.float64 else self._short

    @cached_property
    def _short(self) -> Float32Array:
        return self.matrix.astype(np.float32)

    @cached_property
    def factors(self) -> Factors:
        """The factors of ``matrix``."""
        return Factors.of(self.matrix)

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve hessian X = right [..., K, N], in the precision of ``right``."""
        if right.shape[-2] <= AT_ONCE:
            return np.asarray(np.linalg.solve(self.hessian, right), right.dtype)
        solution = np.empty(right.shape, right.dtype)
        solution[..., self.order, :] = self.factors.solve(right[..., self.order, :])
        return solution


@dataclass(frozen=True)
class Quadratic(Objective):
    """The error tr((W - target) hessian (W - target)^T) of a problem whose damping is chosen."""

    target: FloatArray
    ordered: OrderedHessian

    @property
    def hessian(self) -> Float64Array:
        """The matrix [..., K, K]."""
        return self.ordered.hessian

    @property
    def order(self) -> NDArray[np.intp]:
        """The inputs in the order in which solvers visit them."""
        return self.ordered.order

    def of_outputs(self, part: slice) -> Quadratic:
        """Return the error of some of the outputs."""
        return Quadratic(self.target[..., part, :], self.ordered)

    def elimination(self, outputs: int) -> Elimination:
        """Return GPTQ's corrections of later inputs, for so many outputs."""
        return Elimination(self.ordered.factors.unit_as(self.target.dtype), outputs)

    def descent(self, difference: FloatArray) -> Descent:
        """Return the slope of the error at the target minus ``difference`` [..., K, N], in solvers' order."""
        return Descent(self.ordered.matrix_as(difference.dtype), difference)

    @keeps_subnormals
    def row_errors(self, weights: Float64Array) -> Float64Array:
        """Return the error of each output's weights: [..., N, 1]."""
        difference = weights - self.target
        errors: Float64Array = np.sum(difference * (difference @ self.hessian), axis=-1, keepdims=True)
        return errors


class Elimination:
    """Corrections of later inputs by the rounding errors of earlier ones."""

    def __init__(self, factor: FloatArray, outputs: int) -> None:
        """Start before the first input with the factor U [..., K, K]."""
        self._factor = factor
        self._change = np.zeros((*factor.shape[:-1], outputs), factor.dtype)

    def before(self, block: slice) -> FloatArray:
        """Return the corrections of a block's inputs by those before it: [..., B, N], to be subtracted."""
        factor = np.swapaxes(self._factor[..., : block.start, block], -1, -2)
        return np.asarray(factor @ self._change[..., : block.start, :])

    def near(self, block: slice) -> FloatArray:
        """Return the factor [..., B, B] between the inputs of a block."""
        return self._factor[..., block, block]

    def add(self, block: slice, change: FloatArray) -> None:
        """Record the rounding errors [..., B, N] of a block."""
        self._change[..., block, :] = change


class Descent:
    """Half the descent of the error in the weights of each input, while blocks of inputs change."""

    def __init__(self, hessian: FloatArray, difference: FloatArray) -> None:
        """Start at the target minus the difference."""
        self._hessian, self._slope = hessian, hessian @ difference

    def slope(self, block: slice) -> FloatArray:
        """Return the slope of a block, [..., B, N]."""
        return self._slope[..., block, :]

    def near(self, block: slice) -> FloatArray:
        """Return the hessian [..., B, B] of a block."""
        return self._hessian[..., block, block]

    def add(self, block: slice, change: FloatArray) -> None:
        """Record changes of a block's weights."""
        self._slope -= self._hessian[..., :, block] @ change


@keeps_subnormals
def error(problem: LayerProblem, weights: Float64Array) -> float:
    """Return the sum of squared output errors of weights [..., N, K], less P without ``target_power``."""
    return float(np.sum(weights * (weights @ problem.gram - 2 * problem.cross)) + problem.target_power)


def shifted_target(problem: LayerProblem, damping: float, solve: Solve | None = None) -> FloatArray:
    """Return the unrounded weights [..., N, K] of least error: W0 + (C - W0 H)(H + d I)^-1.

    They compensate for the effect of quantized inputs (arXiv 2505.11695). d is ``damping`` times the mean of
    H's diagonal, or ``damping`` if H is zero; it keeps weights that samples do not determine near W0.
    ``solve``: a replacement for NumPy's function, on another device.
    """
    return quadratic(problem, damping, shift=True, solve=solve).target


@keeps_subnormals
def quadratic(
    problem: LayerProblem | RowProblem, damping: float, *, shift: bool, solve: Solve | None = None
) -> Quadratic | RowQuadratic:
    """Return the error around the shifted target, or around the float weights themselves.

    The error includes d |W - W0|^2, d as in shifted_target: weights that samples do not determine are
    rounded to nearest. Raises ValueError for a damping that is not positive and finite.
    """
    if not 0 < damping < np.inf:
        raise ValueError(f"damping {damping:g} is not positive and finite")
    if isinstance(problem, RowProblem):
        return problem.form(damping, shift=shift)
    ordered = problem.ordered.damped(damping)
    if not shift:
        return Quadratic(problem.weight, ordered)
    right = np.swapaxes(problem.residual, -1, -2)
    change = ordered.solve(right) if solve is None else solve(ordered.hessian, right)
    return Quadratic(problem.weight + np.swapaxes(change, -1, -2), ordered)


def damped(gram: Float64Array, damping: float) -> Float64Array:
    """Return H + d I for each H [..., K, K].

    d is ``damping`` times the mean of its diagonal, or ``damping`` if H is zero.
    """
    diagonal = np.diagonal(gram, axis1=-2, axis2=-1).mean(-1)
    amount = damping * np.where(diagonal > 0, diagonal, 1.0)
    found = gram.copy()
    np.einsum("...ii->...i", found)[...] += amount[..., None]  # a view of the diagonal
    return found
