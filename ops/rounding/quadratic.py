"""The objective of tuning: the squared error of a layer's outputs, as a quadratic form of its weights.

With rows x of a layer's inputs and rows y of the outputs wanted, sum |y - W x|^2 is
tr(W H W^T) - 2 tr(C W^T) + P, where H = sum x x^T, C = sum y x^T and P = sum |y|^2. So no solver reads
samples. Weights are [..., N, K], N outputs by K inputs; leading axes are groups, each with its own H.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.rounding.row_space import Objective, RowProblem, RowQuadratic, unit_upper
from ops.subnormals import keeps_subnormals

Solve = Callable[[Float64Array, Float64Array], NDArray[np.floating]]


@dataclass(frozen=True)
class LayerProblem:
    """A layer: its float ``weight`` [..., N, K], ``gram`` H [..., K, K] and ``cross`` C [..., N, K], float64.

    Both are sums over rows, centred if a bias will absorb the means. ``target_power`` is P, the sum of
    the wanted outputs' squares. Raises ValueError for shapes that do not fit and numbers that are not finite.
    """

    weight: Float64Array
    gram: Float64Array
    cross: Float64Array
    target_power: float = 0.0

    def __post_init__(self) -> None:
        *groups, _, inputs = self.weight.shape
        wanted = {"gram": (*groups, inputs, inputs), "cross": self.weight.shape}
        for name, shape in wanted.items():
            found = getattr(self, name)
            if found.shape != shape:
                needed = f"a weight {list(self.weight.shape)} needs {list(shape)}"
                raise ValueError(f"{name} has shape {list(found.shape)}, {needed}")
        for name in ("weight", "gram", "cross"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} holds numbers that are not finite")

    @cached_property
    def residual(self) -> Float64Array:
        """The part of C that the float weights do not explain: C - W0 H [..., N, K]."""
        return self.cross - self.weight @ self.gram


@dataclass(frozen=True)
class Quadratic(Objective):
    """The error tr((W - target) hessian (W - target)^T) of a problem whose damping is chosen.

    Factorizations are computed once, for all grids that weights are rounded to.
    """

    target: Float64Array
    hessian: Float64Array

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The inputs as solvers visit them, the same in all groups: the largest mean diagonal first."""
        diagonal = np.diagonal(self.hessian, axis1=-2, axis2=-1)
        return np.argsort(-diagonal.reshape(-1, diagonal.shape[-1]).mean(0), kind="stable")

    @cached_property
    def ordered_hessian(self) -> Float64Array:
        """The hessian [..., K, K] of the inputs in their ``order``."""
        return np.ascontiguousarray(self.hessian[..., self.order[:, None], self.order])

    @cached_property
    def unit_upper(self) -> Float64Array:
        """U of U D U^T, the hessian of the inputs in their ``order``, with ones on its diagonal."""
        return unit_upper(self.ordered_hessian)[0]

    def elimination(self, outputs: int) -> Elimination:
        """Return what GPTQ adds to the inputs to come, for so many outputs."""
        return Elimination(self.unit_upper, outputs)

    def descent(self, difference: Float64Array) -> Descent:
        """Return the slope of the error at the target less a ``difference`` [..., K, N] of ordered inputs."""
        return Descent(self.ordered_hessian, difference)

    @keeps_subnormals
    def row_errors(self, weights: Float64Array) -> Float64Array:
        """Return the error of each output's weights: [..., N, 1]."""
        difference = weights - self.target
        errors: Float64Array = np.sum(difference * (difference @ self.hessian), axis=-1, keepdims=True)
        return errors


class Elimination:
    """What the rounding errors of the inputs so far add to the wanted weights of those to come."""

    def __init__(self, factor: Float64Array, outputs: int) -> None:
        """Start before the first input with the factor U [..., K, K]."""
        self._factor = factor
        self._change = np.zeros((*factor.shape[:-1], outputs))

    def before(self, block: slice) -> Float64Array:
        """Return what those before a block add to its inputs: [..., B, N], to be subtracted."""
        own = np.swapaxes(self._factor[..., : block.start, block], -1, -2)
        return np.asarray(own @ self._change[..., : block.start, :])

    def near(self, block: slice) -> Float64Array:
        """Return the factor [..., B, B] of the inputs of a block on each other."""
        return self._factor[..., block, block]

    def add(self, block: slice, change: Float64Array) -> None:
        """Note the rounding errors [..., B, N] of a block."""
        self._change[..., block, :] = change


class Descent:
    """Half the descent of the error in the weights of each input, while blocks of inputs change."""

    def __init__(self, hessian: Float64Array, difference: Float64Array) -> None:
        """Start at the weights that the target less the difference is."""
        self._hessian, self._slope = hessian, hessian @ difference

    def slope(self, block: slice) -> Float64Array:
        """Return that of a block, [..., B, N]."""
        return self._slope[..., block, :]

    def near(self, block: slice) -> Float64Array:
        """Return the hessian [..., B, B] of a block."""
        return self._hessian[..., block, block]

    def add(self, block: slice, change: Float64Array) -> None:
        """Note that weights of a block changed."""
        self._slope -= self._hessian[..., :, block] @ change


@keeps_subnormals
def error(problem: LayerProblem, weights: Float64Array) -> float:
    """Return the sum of squared output errors of weights [..., N, K], less P without ``target_power``."""
    return float(np.sum(weights * (weights @ problem.gram - 2 * problem.cross)) + problem.target_power)


@keeps_subnormals
def shifted_target(problem: LayerProblem, damping: float, solve: Solve = np.linalg.solve) -> Float64Array:
    """Return the unrounded weights [..., N, K] of least error: W0 + (C - W0 H)(H + d I)^-1.

    They compensate for the effect of quantized inputs (arXiv 2505.11695). d is ``damping`` times the mean of
    H's diagonal, or ``damping`` if H is zero; it keeps weights near W0 that samples do not determine.
    ``solve`` does what NumPy's function does.
    """
    shift = solve(damped(problem.gram, damping), np.swapaxes(problem.residual, -1, -2))
    return problem.weight + np.swapaxes(shift, -1, -2)


@keeps_subnormals
def quadratic(
    problem: LayerProblem | RowProblem, damping: float, *, shift: bool, solve: Solve = np.linalg.solve
) -> Quadratic | RowQuadratic:
    """Return the error around the shifted target, or around the float weights themselves.

    The error includes d |W - W0|^2, d as in shifted_target: weights that samples do not determine are
    rounded to nearest. Raises ValueError for a damping that is not positive and finite.
    """
    if not 0 < damping < np.inf:
        raise ValueError(f"damping {damping:g} is not positive and finite")
    if isinstance(problem, RowProblem):
        return problem.form(damping, shift=shift)
    target = shifted_target(problem, damping, solve) if shift else problem.weight
    return Quadratic(target, damped(problem.gram, damping))


def damped(gram: Float64Array, damping: float) -> Float64Array:
    """Return H + d I for each H [..., K, K].

    d is ``damping`` times the mean of its diagonal, or ``damping`` if H is zero.
    """
    diagonal = np.diagonal(gram, axis1=-2, axis2=-1).mean(-1)
    amount = damping * np.where(diagonal > 0, diagonal, 1.0)
    found = gram.copy()
    np.einsum("...ii->...i", found)[...] += amount[..., None]  # a view of the diagonal
    return found
