"""New weights for one layer: candidates are fitted to one part of the samples and chosen by the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

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
from transforms.scheme.fitted_weights import has_few_bits

DAMPINGS = (10.0, 1.0, 0.1, 0.01, 0.001)
"""Damping of the shift of the weights, relative to the mean of the Gram matrix's diagonal."""

_UNSHIFTED = 0.1
"""The same for weights that are only rounded. With 0.01, those of a sentence encoder did well on sentences
like those of tuning, including held-out ones, but worse than nearest rounding on shorter ones."""

_LEARNED = Options(iterations=300)
"""Steps of AdaRound in ``auto``, which take about as long as the rest of a layer."""

LEARNED = ", learned"
"""Suffix of descriptions of weights with learned roundings."""

AS_IT_WAS, BIAS = "as it was", "bias"
"""Descriptions of unchanged constants of a layer, and of a new bias alone."""

_MOST_PRODUCTS = 10_000_000_000
"""Limit of multiplications in a layer: a fraction of a second."""

_MOST_STEPPED = 20_000_000_000
"""Multiplications in a thousand gradient steps above which fewer are made: at most a second in a layer."""

_OUTPUTS = 128
"""Outputs of a layer that judge its weights: at most twice as many, since they are evenly spaced."""

STEPPED = ("adaquant", "adaround")

Form = Quadratic | RowQuadratic


@dataclass
class LayerSolution:
    """Weights [G, N, K] on a grid, and scale and zero point of integers if they are new.

    ``bias`` is [U * G, N] for U layers that share these weights.
    """

    what: str
    weights: FloatArray
    bias: Float64Array
    scale: QParams | None = None


@dataclass
class Tuned:
    """The candidate with the least error on held-out samples, and the errors before and after.

    ``of_inputs`` is the error with float weights, due to the inputs.
    """

    best: LayerSolution
    before: float
    after: float
    power: float
    of_inputs: float


@dataclass
class _Candidate:
    """Rounded weights of some outputs with their error, and how to compute those of all outputs."""

    what: str
    weights: FloatArray
    error: float
    scale: QParams | None
    grid: Grid
    form: Form
    solve: Callable[[Form, Grid], FloatArray]


def tune_layer(
    matched: MatchedLayer,
    current: LayerSolution,
    fit: SharedGramStats,
    held: SharedGramStats,
    options: FinetuneOptions,
) -> Tuned:
    """Return the best weights and bias for a layer, ``current`` unless others are better on ``held``.

    ``fit`` and ``held`` are sums over the layer's inputs in the quantized model and its float outputs, bias
    included. First the damping of the shift is chosen, by the error of unrounded weights, then the grid;
    gradient steps start from the best result. If there are many outputs, some decide.
    """
    tuning = _Tuning(matched, fit, held, options)
    before = error_of(held, current)
    tuned = Tuned(current, before, before, held.power(), tuning.choose_damping())
    for solution in tuning.solutions(current):
        error = error_of(held, solution)
        if error < tuned.after:
            tuned.best, tuned.after = solution, error
    return tuned


def some_outputs(count: int) -> slice:
    """Return the outputs, out of ``count``, that judge candidates."""
    return slice(None, None, max(1, count // _OUTPUTS))


def error_of(sums: SharedGramStats, candidate: LayerSolution) -> float:
    """Return the squared error of a candidate over the rows of some sums."""
    return float(sums.error(candidate.weights, candidate.bias).sum())


def with_bias(
    matched: MatchedLayer, fit: SharedGramStats, what: str, weights: FloatArray, scale: QParams | None
) -> LayerSolution:
    """Return weights [G, N, K] with the biases of least error on some sums, rounded to the layer's format."""
    own = None if scale is None else scale[0]
    return LayerSolution(what, weights, round_biases(matched, fit.bias(weights), own), scale)


class _Tuning:
    """One layer with the sums to which its weights are fitted, and those by which they are judged."""

    def __init__(
        self, matched: MatchedLayer, fit: SharedGramStats, held: SharedGramStats, options: FinetuneOptions
    ) -> None:
        self._matched, self._fit, self._held, self._options = matched, fit, held, options
        packed = matched.float_weight
        self._part = some_outputs(packed.shape[1])
        is_coarse = has_few_bits(matched.weight.format) and not self._judges_all
        kind = np.float32 if is_coarse else np.float64
        self._start: FloatArray = packed.reshape(*packed.shape[:2], -1).astype(kind)
        self._sums = fit.free()
        self._problem = self._sums.problem(self._start)
        self._judged = fit.of_outputs(self._part), held.of_outputs(self._part)
        self._shifted: tuple[float, Form] | None = None

    def choose_damping(self) -> float:
        """Choose the damping of the best unrounded target on held-out rows; return the float weights' error.

        The weights are not shifted if float weights are better than all targets.
        """
        of_inputs = float(self._held.error(self._start, self._fit.bias(self._start)).sum())
        least = self._error(self._start[:, self._part])
        for damping in DAMPINGS if self._options.weights and self._fit.count else ():
            form = self._form(damping, shift=True)
            error = self._error(form.target[:, self._part])
            if error < least:
                least, self._shifted = error, (damping, form)
        return of_inputs

    def solutions(self, current: LayerSolution) -> Iterator[LayerSolution]:
        """Yield the current weights with another bias, then the best of the other weights, shifted or not."""
        if any(self._fit.has_bias):
            yield self._with_bias(BIAS, current.weights, None)
        if not self._options.weights or not self._fit.count:
            return
        best = min(self._rounded(), key=lambda candidate: candidate.error)
        yield self._whole(best)
        for learned in self._learned(best):
            if learned.error < best.error:
                yield self._whole(learned)

    def _rounded(self) -> Iterator[_Candidate]:
        algorithm = "coordinate_descent" if self._options.algorithm == "coordinate_descent" else "gptq"
        solve = partial(solve_form, algorithm=algorithm, options=self._options.solver)
        plain = self._form(_UNSHIFTED, shift=False)
        for what, grid, scale in self._grids():
            if self._shifted is not None:
                damping, form = self._shifted
                yield self._candidate(f"{what}, shifted by {damping:g}", form, grid, scale, solve)
            yield self._candidate(what, plain, grid, scale, solve)

    def _learned(self, best: _Candidate) -> Iterator[_Candidate]:
        """Yield weights whose roundings are learned by gradient steps, on the grid and target of ``best``.

        With ``auto`` these are roundings up or down of integers, in layers that are not large: they stay
        closer to the weights than roundings that compensate each other, and are sometimes better on other
        rows (0.5 dB in the mean over convolutional networks in A8W8; 0.1 dB for blocks).
        """
        algorithm, solver = self._options.algorithm, self._options.solver
        groups, outputs, inputs = self._start.shape
        products = groups * outputs * inputs**2
        fmt = self._matched.weight.format
        if algorithm == "auto" and fmt is not None and fmt.is_integer:
            algorithm, solver = "adaround", _LEARNED
            if products * solver.iterations > _MOST_PRODUCTS:
                return
        if algorithm not in STEPPED or isinstance(best.form, RowQuadratic):
            return
        solve = partial(solve_form, algorithm=algorithm, options=_bounded(solver, algorithm, products))
        yield self._candidate(f"{best.what}{LEARNED}", best.form, best.grid, best.scale, solve)

    def _form(self, damping: float, *, shift: bool) -> Form:
        return quadratic(self._problem, damping, shift=shift, solve=self._sums.solver)

    def _error(self, weights: FloatArray) -> float:
        """Return the held-out error of the judging outputs' weights, with their best bias."""
        fit, held = self._judged
        return float(held.error(weights, fit.bias(weights)).sum())

    def _candidate(
        self,
        what: str,
        form: Form,
        grid: Grid,
        scale: QParams | None,
        solve: Callable[[Form, Grid], FloatArray],
    ) -> _Candidate:
        if self._judges_all:
            weights = solve(form, grid)
            error = error_of(self._held, self._with_bias(what, weights, scale))
        else:
            weights = solve(form.of_outputs(self._part), grid.rows(self._part))
            error = self._error(weights)
        return _Candidate(what, weights, error, scale, grid, form, solve)

    def _whole(self, found: _Candidate) -> LayerSolution:
        """Return the weights of all outputs."""
        weights = found.weights if self._judges_all else found.solve(found.form, found.grid)
        return self._with_bias(found.what, weights, found.scale)

    @property
    def _judges_all(self) -> bool:
        return self._part.step == 1

    def _with_bias(self, what: str, weights: FloatArray, scale: QParams | None) -> LayerSolution:
        return with_bias(self._matched, self._fit, what, weights, scale)

    def _grids(self) -> Iterator[tuple[str, Grid, QParams | None]]:
        biases, rescale = self._fit.bias(self._start), self._options.rescale
        yield from layer_grids(self._matched, self._sums.importance, biases, rescale=rescale)
        if rescale:
            yield from plain_grid(self._matched, biases)


def _bounded(solver: Options, algorithm: str, products: int) -> Options:
    """Return options whose steps take bounded time, given the multiplications of a step in a layer.

    There are fewer steps then, and AdaQuant's are longer in proportion.
    """
    share = _MOST_STEPPED / (products * Options.iterations)
    if share >= 1:
        return solver
    rate = solver.learning_rate
    if algorithm == "adaquant":
        rate = (rate or LEARNING_RATE) / share
    return replace(solver, iterations=max(1, round(solver.iterations * share)), learning_rate=rate)
