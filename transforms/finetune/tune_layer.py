"""New weights for one layer: candidates are fitted to one part of the samples, and chosen by the other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from ops.array_types import Float64Array, QParams
from ops.grids import Grid
from ops.rounding import LayerProblem, Options, Quadratic, learn_scale, quadratic, solve_form
from transforms.finetune.gram import SharedGramStats
from transforms.finetune.options import TuneOptions
from transforms.finetune.round_bias import least_scale, round_biases
from transforms.finetune.weight_grids import PRESENT, has_power_scale, layer_grids, plain_grid
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

_MOST_PRODUCTS = 20_000_000_000
"""Multiplications that they may take in a layer: a fraction of a second."""


Split = tuple[SharedGramStats, SharedGramStats]
"""Sums over rows that weights are fitted to, and over others that judge them."""


@dataclass
class LayerSolution:
    """Weights [G, N, K] on a grid, and scale and zero point of integers if they are new.

    ``bias`` is [U * G, N] for U layers that share these weights, one after another.
    """

    what: str
    weights: Float64Array
    bias: Float64Array
    scale: QParams | None = None


@dataclass
class Tuned:
    """The candidate with the least error on held-out samples, and the errors there before and after.

    ``of_inputs`` is the error that float weights would leave: that of the inputs. ``unlearned``: what would
    be best without learned roundings, if those are.
    """

    best: LayerSolution
    before: float
    after: float
    power: float
    of_inputs: float
    unlearned: Tuned | None = None


def is_offered(what: str, options: TuneOptions) -> bool:
    """Return whether options allow a candidate, which is told by its words.

    What is best of all candidates is best of fewer, too, if it is among them.
    """
    if what in (AS_IT_WAS, BIAS):
        return True
    return options.weights and (options.rescale or what.startswith(PRESENT))


def tune_layer(
    matched: MatchedLayer,
    current: LayerSolution,
    fit: SharedGramStats,
    held: SharedGramStats,
    options: TuneOptions,
    *,
    crossed: Sequence[Split] = (),
    learn: bool = True,
) -> Tuned:
    """Return the best weights and bias for a layer, ``current`` unless others are better on ``held``.

    ``fit`` and ``held`` are sums over the layer's inputs in the quantized model and its float outputs, bias
    included. With ``crossed`` splits of the rows of ``fit``, candidates that are made in the same way from
    the first sums of each judge by the second ones instead. ``learn``: whether ``auto`` may learn roundings,
    which only many held-out samples tell apart.
    """
    if crossed:
        return _cross_tuned(matched, current, fit, crossed, options)
    tuning = _Tuning(matched, fit, options)
    before = _error(held, current)
    best, least = current, before
    unrounded = tuning.damping_errors(held)
    damping = _best_damping(unrounded)
    for candidate in tuning.candidates(current, damping):
        error = _error(held, candidate)
        if error < least:
            best, least = candidate, error
    found = Tuned(best, before, least, held.power(), float(unrounded[0]))
    for candidate in tuning.learned(best) if learn else ():
        error = _error(held, candidate)
        if error < least:
            return dataclasses.replace(found, best=candidate, after=error, unlearned=found)
    return found


def _best_damping(errors: Float64Array) -> float | None:
    """Return the damping whose unrounded target is best; None: no shift."""
    number = int(np.argmin(np.nan_to_num(errors, nan=np.inf)))
    return DAMPINGS[number - 1] if number else None


def _cross_tuned(
    matched: MatchedLayer,
    current: LayerSolution,
    fit: SharedGramStats,
    crossed: Sequence[Split],
    options: TuneOptions,
) -> Tuned:
    """Return what is made of all sums in the way that is best over the splits."""
    # a tuning holds several matrices of the size of its sums: one at a time
    of_dampings = sum(_Tuning(matched, own, options).damping_errors(judge) for own, judge in crossed)
    damping = _best_damping(np.asarray(of_dampings))
    found = [
        [_error(judge, one) for one in _Tuning(matched, own, options).candidates(current, damping)]
        for own, judge in crossed
    ]
    before = sum(_error(judge, current) for _, judge in crossed)
    power = sum(judge.power() for _, judge in crossed)
    errors, of_inputs = np.sum(found, axis=0), float(np.asarray(of_dampings)[0])
    number = int(np.argmin(errors)) if errors.size else 0
    if not (errors.size and errors[number] < before):
        return Tuned(current, before, before, power, of_inputs)
    made = _Tuning(matched, fit, options).candidates(current, damping)
    return Tuned(next(islice(made, number, None)), before, float(errors[number]), power, of_inputs)


def _error(sums: SharedGramStats, candidate: LayerSolution) -> float:
    return float(sums.error(candidate.weights, candidate.bias).sum())


class _Tuning:
    """One layer with the sums that its weights are fitted to."""

    def __init__(self, matched: MatchedLayer, fit: SharedGramStats, options: TuneOptions) -> None:
        self._matched, self._fit, self._options = matched, fit, options
        packed = matched.float_weight
        self._start: Float64Array = packed.reshape(*packed.shape[:2], -1).astype(np.float64)
        self._sums = fit.free()
        self._problem = LayerProblem(self._start, self._sums.xx, self._sums.yx)
        self._forms: dict[float | None, Quadratic] = {}
        self._solved: dict[str, tuple[Grid, Quadratic, QParams | None]] = {}

    def candidates(self, current: LayerSolution, damping: float | None) -> Iterator[LayerSolution]:
        """Yield the current weights with another bias, and then other weights, shifted with a damping."""
        if any(self._fit.has_bias):
            yield self._with_bias(BIAS, current.weights, None)
        if not self._options.weights or not self._fit.count:
            return
        for what, grid, scale in chain(self._grids(), self._plain_grid()):
            if damping is not None:
                yield self._solve(f"{what}, shifted by {damping:g}", grid, self._form(damping), scale)
            yield self._solve(what, grid, self._form(None), scale)
        if self._options.algorithm == "adaquant" and self._options.rescale:
            yield from self._with_learned_scale(damping)

    def learned(self, best: LayerSolution) -> Iterator[LayerSolution]:
        """Yield the best weights of ``auto`` with roundings up or down that are learned, if they are few.

        Those stay closer to the weights than the ones that make up for each other do: worse on the rows that
        they are fitted to, they are sometimes better on others.
        """
        groups, outputs, inputs = self._start.shape
        products = groups * outputs * inputs**2 * _LEARNED.iterations
        if self._options.algorithm != "auto" or best.what not in self._solved or products > _MOST_PRODUCTS:
            return
        grid, form, scale = self._solved[best.what]
        yield self._with_bias(f"{best.what}{LEARNED}", solve_form(form, grid, "adaround", _LEARNED), scale)

    def _with_learned_scale(self, damping: float | None) -> Iterator[LayerSolution]:
        """Yield weights on the scales that AdaQuant learns with them, if each output has its own.

        Not where scales are powers of two.
        """
        *_, (_, grid, parameters) = self._grids()
        if parameters is None or parameters[0].size != math.prod(self._start.shape[:2]):
            return
        if has_power_scale(self._matched):
            return
        solver, form = self._options.solver, self._form(damping)
        rate = {} if solver.learning_rate is None else {"learning_rate": solver.learning_rate}
        learned = learn_scale(form, grid, iterations=solver.iterations, **rate)
        scale = learned.scale.astype(np.float32).reshape(parameters[0].shape)
        scale = np.maximum(scale, least_scale(self._matched, self._fit.bias(self._start), scale))
        grid = dataclasses.replace(learned, scale=scale.astype(np.float64).reshape(learned.scale.shape))
        yield self._solve("learned scale", grid, form, (scale, parameters[1]))

    def _form(self, damping: float | None) -> Quadratic:
        """Return the error around weights that are shifted with a damping; None: not shifted."""
        if damping not in self._forms:
            chosen = _UNSHIFTED if damping is None else damping
            solve = self._sums.solve
            self._forms[damping] = quadratic(self._problem, chosen, shift=damping is not None, solve=solve)
        return self._forms[damping]

    def damping_errors(self, held: SharedGramStats) -> Float64Array:
        """Return the errors of the float weights, and of the unrounded targets with each of DAMPINGS."""
        dampings = DAMPINGS if self._options.weights and self._fit.count else ()
        targets = (self._form(damping).target for damping in dampings)
        return np.array([self._float_error(held, one) for one in (self._start, *targets)])

    def _float_error(self, held: SharedGramStats, weights: Float64Array) -> float:
        """Return the error of unrounded weights, with the bias that suits them."""
        return float(held.error(weights, self._fit.bias(weights)).sum())

    def _solve(self, what: str, grid: Grid, form: Quadratic, scale: QParams | None) -> LayerSolution:
        algorithm = "gptq" if self._options.algorithm == "auto" else self._options.algorithm
        weights = solve_form(form, grid, algorithm, self._options.solver)
        self._solved[what] = grid, form, scale
        return self._with_bias(what, weights, scale)

    def _with_bias(self, what: str, weights: Float64Array, scale: QParams | None) -> LayerSolution:
        own = None if scale is None else scale[0]
        return LayerSolution(what, weights, round_biases(self._matched, self._fit.bias(weights), own), scale)

    def _grids(self) -> Iterator[tuple[str, Grid, QParams | None]]:
        importance = np.maximum(np.diagonal(self._sums.xx, axis1=-2, axis2=-1), 0)
        biases = self._fit.bias(self._start)
        return layer_grids(self._matched, importance, biases, rescale=self._options.rescale)

    def _plain_grid(self) -> Iterator[tuple[str, Grid, QParams | None]]:
        return plain_grid(self._matched, self._fit.bias(self._start)) if self._options.rescale else iter(())
