"""New weights for one layer: candidates are fitted to one part of the samples, and chosen by the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ops.array_types import Float64Array, FloatArray, QParams
from ops.grids import Grid
from ops.rounding import Options, Quadratic, RowQuadratic, quadratic, solve_form
from ops.rounding.adaquant import LEARNING_RATE
from transforms.finetune.layer_stats import SharedGramStats
from transforms.finetune.options import FinetuneOptions
from transforms.finetune.round_bias import round_biases
from transforms.finetune.weight_grids import layer_grids, plain_grid
from transforms.layers.matched_layer import MatchedLayer

DAMPINGS = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Damping of the shift of the weights, relative to the mean of the Gram matrix's diagonal."""

_UNSHIFTED = 0.1
"""The same for weights that are rounded only. With 0.01, those of a sentence encoder did well on sentences
like those that they were tuned on, held-out ones too, but worse than nearest rounding on shorter ones."""

_LEARNED = Options(iterations=300)
"""Steps of AdaRound in ``auto``, as many as take about as long as the rest of a layer."""

LEARNED = ", learned"
"""End of the words for weights with learned roundings."""

AS_IT_WAS, BIAS = "as it was", "bias"
"""The words for what a layer has, and for that with another bias."""

_MOST_PRODUCTS = 10_000_000_000
"""Multiplications that they may take in a layer: a fraction of a second."""

_MOST_STEPPED = 20_000_000_000
"""Multiplications of a thousand gradient steps beyond which there are fewer: a second in a layer at most."""

STEPPED = ("adaquant", "adaround")

Form = Quadratic | RowQuadratic


@dataclass
class LayerSolution:
    """Weights [G, N, K] on a grid, and scale and zero point of integers if they are new.

    ``bias`` is [U * G, N] for U layers that share these weights, one after another.
    """

    what: str
    weights: FloatArray
    bias: Float64Array
    scale: QParams | None = None


@dataclass
class Tuned:
    """The candidate with the least error on held-out samples, and the errors there before and after.

    ``of_inputs`` is the error that float weights would leave: that of the inputs.
    """

    best: LayerSolution
    before: float
    after: float
    power: float
    of_inputs: float


def tune_layer(
    matched: MatchedLayer,
    current: LayerSolution,
    fit: SharedGramStats,
    held: SharedGramStats,
    options: FinetuneOptions,
) -> Tuned:
    """Return the best weights and bias for a layer, ``current`` unless others are better on ``held``.

    ``fit`` and ``held`` are sums over the layer's inputs in the quantized model and its float outputs, bias
    included. First the damping of the shift is chosen, by the error of weights that are not rounded, then the
    grid; gradient steps start from the best of all that.
    """
    tuning = _Tuning(matched, fit, options)
    before = error_of(held, current)
    found = Tuned(current, before, before, held.power(), tuning.choose_damping(held))
    rounded: tuple[float, str] | None = None
    for candidate in tuning.candidates(current):
        error = error_of(held, candidate)
        if error < found.after:
            found.best, found.after = candidate, error
        if candidate.what != BIAS and (rounded is None or error < rounded[0]):
            rounded = error, candidate.what
    for candidate in tuning.learned(rounded[1]) if rounded else ():
        error = error_of(held, candidate)
        if error < found.after:
            found.best, found.after = candidate, error
    return found


def error_of(sums: SharedGramStats, candidate: LayerSolution) -> float:
    """Return the squared error that a candidate leaves over the rows of some sums."""
    return float(sums.error(candidate.weights, candidate.bias).sum())


def with_bias(
    matched: MatchedLayer, fit: SharedGramStats, what: str, weights: FloatArray, scale: QParams | None
) -> LayerSolution:
    """Return weights [G, N, K] with the biases of least error on some sums, rounded as the layer has them."""
    own = None if scale is None else scale[0]
    return LayerSolution(what, weights, round_biases(matched, fit.bias(weights), own), scale)


class _Tuning:
    """One layer with the sums that its weights are fitted to."""

    def __init__(self, matched: MatchedLayer, fit: SharedGramStats, options: FinetuneOptions) -> None:
        self._matched, self._fit, self._options = matched, fit, options
        packed = matched.float_weight
        self._start: Float64Array = packed.reshape(*packed.shape[:2], -1).astype(np.float64)
        self._sums = fit.free()
        self._problem = self._sums.problem(self._start)
        self._shifted: tuple[float, Form] | None = None
        self._solved: dict[str, tuple[Grid, Form, QParams | None]] = {}

    def choose_damping(self, held: SharedGramStats) -> float:
        """Choose the damping whose unrounded target is best on other rows; return the float weights' error.

        There is no shift if float weights are better than all targets.
        """
        of_inputs = least = self._float_error(held, self._start)
        for damping in DAMPINGS if self._options.weights and self._fit.count else ():
            form = self._form(damping, shift=True)
            error = self._float_error(held, form.target)
            if error < least:
                least, self._shifted = error, (damping, form)
        return of_inputs

    def candidates(self, current: LayerSolution) -> Iterator[LayerSolution]:
        """Yield the current weights with another bias, and then other weights, shifted or not."""
        if any(self._fit.has_bias):
            yield self._with_bias(BIAS, current.weights, None)
        if not self._options.weights or not self._fit.count:
            return
        plain = self._form(_UNSHIFTED, shift=False)
        for what, grid, scale in self._grids():
            if self._shifted is not None:
                damping, form = self._shifted
                yield self._solve(f"{what}, shifted by {damping:g}", grid, form, scale)
            yield self._solve(what, grid, plain, scale)

    def learned(self, what: str) -> Iterator[LayerSolution]:
        """Yield weights with roundings that gradient steps learn, on the grid and target of others.

        With ``auto`` those are roundings up or down of integers, in layers that are not large: they stay
        closer to the weights than the ones that make up for each other do, and are sometimes better on other
        rows (0.5 dB in the mean over convolutional networks in A8W8; of blocks of numbers, 0.1 dB).
        """
        grid, form, scale = self._solved[what]
        algorithm, solver = self._options.algorithm, self._options.solver
        groups, outputs, inputs = self._start.shape
        products = groups * outputs * inputs**2
        fmt = self._matched.weight.format
        if algorithm == "auto" and fmt is not None and fmt.is_integer:
            algorithm, solver = "adaround", _LEARNED
            if products * solver.iterations > _MOST_PRODUCTS:
                return
        if algorithm not in STEPPED or isinstance(form, RowQuadratic):
            return
        weights = solve_form(form, grid, algorithm, _bounded(solver, algorithm, products))
        yield self._with_bias(f"{what}{LEARNED}", weights, scale)

    def _form(self, damping: float, *, shift: bool) -> Form:
        return quadratic(self._problem, damping, shift=shift, solve=self._sums.solver)

    def _float_error(self, held: SharedGramStats, weights: FloatArray) -> float:
        """Return the error of unrounded weights, with the bias that suits them."""
        return float(held.error(weights, self._fit.bias(weights)).sum())

    def _solve(self, what: str, grid: Grid, form: Form, scale: QParams | None) -> LayerSolution:
        algorithm = "coordinate_descent" if self._options.algorithm == "coordinate_descent" else "gptq"
        self._solved[what] = grid, form, scale
        return self._with_bias(what, solve_form(form, grid, algorithm, self._options.solver), scale)

    def _with_bias(self, what: str, weights: FloatArray, scale: QParams | None) -> LayerSolution:
        return with_bias(self._matched, self._fit, what, weights, scale)

    def _grids(self) -> Iterator[tuple[str, Grid, QParams | None]]:
        biases, rescale = self._fit.bias(self._start), self._options.rescale
        yield from layer_grids(self._matched, self._sums.importance, biases, rescale=rescale)
        if rescale:
            yield from plain_grid(self._matched, biases)


def _bounded(solver: Options, algorithm: str, products: int) -> Options:
    """Return options whose steps take bounded time in a layer of so many multiplications a step.

    There are fewer steps then, and AdaQuant's are as much longer.
    """
    share = _MOST_STEPPED / (products * Options.iterations)
    if share >= 1:
        return solver
    rate = solver.learning_rate
    if algorithm == "adaquant":
        rate = (rate or LEARNING_RATE) / share
    return replace(solver, iterations=max(1, round(solver.iterations * share)), learning_rate=rate)
