"""New weights for one layer: candidates from one part of the samples, the choice among them by the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ops.grids import Grid, weight_grid
from ops.integers import range_scale
from ops.rounding import LayerProblem, Options, shifted_target, solve
from transforms.gram import Sums
from transforms.match_layers import MatchedLayer

Floats = NDArray[np.float64]

DAMPINGS = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Times the mean of the Gram matrix's diagonal: how strongly the shift of the weights is held back."""

_LARGEST_BIAS = np.float64(2**31 - 1)
_MARGIN = 1 + 2.0**-20


@dataclass(frozen=True)
class TuneOptions:
    """How layers are tuned.

    ``algorithm``: ``auto`` or one of ops.rounding.ALGORITHMS. ``rescale``: whether scales and shared exponents
    are chosen anew. ``weights``: False tunes biases alone. ``solver``: what the algorithm takes.
    """

    algorithm: str = "auto"
    rescale: bool = True
    weights: bool = True
    solver: Options = field(default_factory=Options)


@dataclass
class Candidate:
    """Weights [G, N, K] on a grid, their bias [G, N], and the scale of integers where it is a new one."""

    what: str
    weights: Floats
    bias: Floats
    scale: NDArray[np.float32] | None = None


@dataclass
class Tuned:
    """The candidate with the least error on held-out samples, and the errors of before and after there."""

    best: Candidate
    before: float
    after: float
    power: float


def tune_layer(
    matched: MatchedLayer,
    current: Candidate,
    fit: Sums,
    held: Sums,
    options: TuneOptions,
    x_scale: float | None,
) -> Tuned:
    """Return the best weights and bias for a layer; ``current`` where nothing is better on ``held``.

    ``fit`` and ``held`` are sums over the layer's inputs in the quantized model and its float outputs, bias
    included. ``x_scale`` is the scale of integer inputs, whose product with the weight's is that of an int32
    bias.
    """
    tuning = _Tuning(matched, fit, options, x_scale)
    before = _error(held, current)
    best, least = current, before
    for candidate in tuning.candidates(current, held):
        error = _error(held, candidate)
        if error < least:
            best, least = candidate, error
    return Tuned(best, before, least, float(held.centred().yy.sum()))


def _error(sums: Sums, candidate: Candidate) -> float:
    return float(sums.error(candidate.weights, candidate.bias).sum())


class _Tuning:
    """One layer with the sums over the rows that its weights are fitted to."""

    def __init__(self, matched: MatchedLayer, fit: Sums, options: TuneOptions, x_scale: float | None) -> None:
        self._matched, self._fit, self._options, self._x_scale = matched, fit, options, x_scale
        packed = matched.float_weight
        self._start: Floats = packed.reshape(*packed.shape[:2], -1).astype(np.float64)
        self._sums = fit if matched.bias is None else fit.centred()
        self._problem = LayerProblem(self._start, self._sums.xx, self._sums.yx)

    def candidates(self, current: Candidate, held: Sums) -> Iterator[Candidate]:
        """Yield the current weights with another bias, and then other weights."""
        if self._matched.bias is not None:
            yield self._with_bias("bias", current.weights, None)
        if not self._options.weights or not self._fit.count:
            return
        damping = self._best_damping(held)
        for what, grid, scale in self._grids():
            if damping is not None:
                yield self._solve(f"{what}, shifted by {damping:g}", grid, damping, scale, shift=True)
            yield self._solve(what, grid, 0.01, scale, shift=False)

    def _best_damping(self, held: Sums) -> float | None:
        """Return the damping whose target, not yet rounded, is best on held-out samples; None: no shift."""
        best, least = None, self._float_error(held, self._start)
        for damping in DAMPINGS:
            error = self._float_error(held, shifted_target(self._problem, damping))
            if error < least:
                best, least = damping, error
        return best

    def _float_error(self, held: Sums, weights: Floats) -> float:
        return float(held.error(weights, self._bias_of(weights)).sum())

    def _bias_of(self, weights: Floats) -> Floats:
        if self._matched.bias is None:
            return np.zeros(weights.shape[:2])
        return self._fit.bias(weights)

    def _solve(
        self, what: str, grid: Grid, damping: float, scale: NDArray[np.float32] | None, *, shift: bool
    ) -> Candidate:
        algorithm = "gptq" if self._options.algorithm == "auto" else self._options.algorithm
        options = Options(damping, shift, self._options.solver.sweeps)
        return self._with_bias(what, solve(self._problem, grid, algorithm, options), scale)

    def _with_bias(self, what: str, weights: Floats, scale: NDArray[np.float32] | None) -> Candidate:
        return Candidate(what, weights, self._rounded(self._bias_of(weights), scale), scale)

    def _rounded(self, bias: Floats, scale: NDArray[np.float32] | None) -> Floats:
        """Return the bias as it can be stored."""
        place = self._matched.bias
        if place is None:
            return bias
        bias = bias / place.gain
        step = self.bias_scale(scale)
        if step is not None:
            bias = np.rint(bias / step) * step
        elif place.stored is not None and place.stored.is_integer:
            one, zero = constant_scale(place.stored.zero_point, bias)  # type: ignore[arg-type]
            row = place.stored.format
            bias = (np.clip(np.rint(bias / one) + zero, row.lowest, row.highest) - zero) * one
        return bias * place.gain

    def bias_scale(self, scale: NDArray[np.float32] | None) -> Floats | None:
        """Return the scale [G, N] of an int32 bias, None where it is no int32."""
        place, weight = self._matched.bias, self._matched.weight
        if self._x_scale is None or not weight.is_integer or place is None:
            return None
        if place.stored is not None and (not place.stored.is_integer or place.stored.format.name != "int32"):
            return None
        chosen = np.asarray(weight.scale if scale is None else scale, np.float32)
        product = np.asarray(np.float32(self._x_scale) * chosen, np.float32).astype(np.float64)
        groups, outputs = self._start.shape[:2]
        return np.broadcast_to(product.reshape(-1), groups * outputs).reshape(groups, outputs)

    def _grids(self) -> Iterator[tuple[str, Grid, NDArray[np.float32] | None]]:
        """Yield the grid in use, and one whose scale or exponents suit the inputs."""
        weight, packed = self._matched.weight, self._matched.float_weight
        row = weight.format
        assert row is not None
        if row.is_integer:
            given = {"scale": weight.scale, "zero_point": weight.zero_point}
            yield "same scale", weight_grid(packed, row, **given), None
        else:
            yield "same exponents", weight_grid(packed, row), None
        if not self._options.rescale or (row.block == 1 and not row.is_integer):
            return
        importance = np.maximum(np.diagonal(self._sums.xx, axis1=-2, axis2=-1), 0)
        if not row.is_integer:
            yield "other exponents", weight_grid(packed, row, importance=importance), None
            return
        if np.any(weight.zero_point):
            return
        grid = weight_grid(packed, row, per_channel=weight.axis is not None, importance=importance)
        scale = np.asarray(grid.scale, np.float32).reshape(-1)
        scale = scale[:1].reshape(()) if weight.axis is None else scale
        scale = np.maximum(scale, self._least_scale(scale)).astype(np.float32)
        yield "other scale", weight_grid(packed, row, scale=scale), scale

    def _least_scale(self, scale: NDArray[np.float32]) -> Floats:
        """Return the scale of the weight below which a bias would not fit into int32."""
        if self.bias_scale(scale) is None:
            return np.zeros(scale.shape)
        largest = np.abs(self._bias_of(self._start)).reshape(-1)
        largest = largest if scale.ndim else largest.max(initial=0)
        return np.asarray(2 * _MARGIN * largest / (_LARGEST_BIAS * np.float64(self._x_scale or 1)))


def constant_scale(zero_point: NDArray[np.generic], bias: Floats) -> tuple[float, float]:
    """Return scale and zero point for a constant of the zero point's type, as its quantizer chooses them."""
    row = str(np.asarray(zero_point).dtype)
    symmetric = not np.any(zero_point)
    low, high = min(float(bias.min(initial=0)), 0.0), max(float(bias.max(initial=0)), 0.0)
    scale, zero = range_scale(low, high, row, symmetric=symmetric)
    return float(scale), float(zero)
