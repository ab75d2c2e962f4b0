"""The samples on which tuned models are compared, and errors of models fitted to parts of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Feed, Float64Array
from transforms.finetune.acceptance import (
    ONE,
    OPEN,
    clear_of,
    gain,
    gains_nothing,
    gains_of_outputs,
    harmed,
    is_significantly_better,
    is_sure,
    loses,
)
from transforms.finetune.closed_loop import ClosedLoop
from transforms.finetune.find_states import find_states, is_stream
from transforms.finetune.options import ENOUGH, FEW, FinetuneOptions, LayerwiseOptions, is_held_out
from transforms.finetune.output_error import Errors, OutputError
from transforms.finetune.vary_samples import mosaics, noisy, varied, with_bars
from transforms.graph.number_shapes import in_words

_LEAST_JUDGED, _LEAST_FITTED = 32, 4
"""Least number of samples on which outputs are compared, in all and of those that weights were fitted to."""

_FEW_SEEN = 8
"""Samples by which scales of activations are chosen, which others confirm."""

_FOLDS = 3
"""Models that are fitted if too few samples are held out from one; of very few each is held out from one."""

_MOST_STEPS = 32
"""Samples that a recurrent model runs through with its own states."""

_OF_SAMPLES = 0.05
"""How much the gain of samples counts beside that by probes: noise on the samples, and mosaics of images.

Probes are further from the samples than other inputs are: by them alone a loss of nearly nothing would refuse
a large gain.
"""

_LOST = 10**0.01
"""Ratio of the errors of an output in a loop from which on it became worse: 0.1 dB."""


class JudgedSamples:
    """The errors of the outputs on held-out samples, and on some of those that weights are fitted to.

    If few are held out, errors of copies that vary a little are added to theirs. ``fitted``: the samples that
    layers are tuned on; of few, some images have bars.

    ``folds``: how many models may be fitted, each with other samples held out. Of many samples enough are
    held out from one. ``options``: those that were given; samples of a model with states are held out in
    blocks if they are few or neighbours are alike.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        feeds: Sequence[Feed],
        options: FinetuneOptions,
    ) -> None:
        """Run both models on the samples."""
        count = len(feeds)
        first = feeds[:_MOST_STEPS]
        states = find_states(float_graph, first, options.run)
        streamed = bool(states) and is_stream(first)
        alike = bool(states) and (count < FEW * options.held_out or streamed)
        options = dataclasses.replace(options, in_blocks=options.in_blocks or alike)
        self.options = options
        folds = range(min(options.held_out, count))
        by_fold = [_held_out(count, dataclasses.replace(options, fold=fold)) for fold in folds]
        self.folds = _fold_count(by_fold, options)
        held = [i for places in by_fold[: self.folds] for i in places]
        others = sorted(set(range(count)) - set(held))
        judged = min(len(others), max(_LEAST_JUDGED - len(held), _LEAST_FITTED))
        places = held + _spread(others, judged)
        self._parts = [np.isin(places, part) for part in by_fold[: self.folds]]
        self.fitted, compared = [*feeds], [feeds[i] for i in places]
        # states of its own are what shows unseen inputs of a recurrent one
        probes = [] if states else [noisy(compared), mosaics(compared)]
        if not (states or self.can_choose):
            self.fitted, compared = with_bars(feeds), varied(compared)
        index, run = options.output_index, options.run
        known = quantized_graph
        self._errors = OutputError(float_graph, compared, index, run, samples=len(places), known=known)
        self._first = self._errors.each(quantized_graph)
        judges = [OutputError(float_graph, probe, index, run, known=known) for probe in probes if probe]
        self._probes = [(judge, judge.each(quantized_graph)) for judge in judges]
        steps = [feeds[i] for i in _spread(range(count), min(count, _MOST_STEPS))]
        names = self._errors.names
        self._loop = ClosedLoop(float_graph, steps, states, names, run, held=not streamed) if states else None
        self._first_loop = self.loop(quantized_graph)

    @property
    def before(self) -> float:
        """The error of the original model on the samples that are held out first."""
        return self._first.of(self._parts[0]).relative

    @property
    def notes(self) -> list[str]:
        """Lines on outputs that are not compared themselves."""
        return in_words(self._errors.judged)

    @property
    def can_choose(self) -> bool:
        """Whether there are samples enough to choose layers by: of few, one choice of many fits by chance."""
        return bool(self._parts[0].sum() >= FEW)

    def each(self, graph: gs.Graph) -> Errors:
        """Return the errors of a model on all samples that are compared."""
        return self._errors.each(graph)

    def loop(self, graph: gs.Graph) -> Float64Array | None:
        """Return the errors of outputs of a recurrent model with its own states, [loops, outputs].

        None for other models.
        """
        return None if self._loop is None else self._loop.errors(graph)

    def lost(self, graph: gs.Graph, errors: Errors, than: gs.Graph | None = None) -> list[str]:
        """Return the outputs of a model that became worse in a loop, or on probes.

        ``errors``: its own on the samples. In a loop outputs are worse than those of the original model, or
        of another one, ``than``.
        """
        after, start = self.loop(graph), self._first_loop if than is None else self.loop(than)
        if after is None or start is None:
            return self._lost_by_probes(graph, errors)
        lost = [self._errors.names[i] for i in np.flatnonzero(~(after <= _LOST * start).all(0))]
        return lost or self._lost_by_probes(graph, errors)

    def opened(self, graph: gs.Graph, fold: int) -> Callable[[Feed], Errors]:
        """Return the errors of a model on few samples that are not held out, for what is fed beside them."""
        return self._errors.opened(graph, self._few(fold))

    def improves(self, before: Errors, after: Errors, fold: int) -> bool:
        """Return whether a model is better than another on samples other than those few, beyond doubt.

        It is the best of many on those few, and the model without it is accepted already: a gain that may be
        chance is not worth taking. Weights are fitted to most of the others, which show gains of unseen
        samples only roughly, and gains before a Softmax are not always gains after it. So the gain has to be
        as clear as where other models could tell more, and outputs as they are made may not lose.
        """
        others = np.ones_like(self._parts[fold])
        others[self._few(fold)] = False
        if gain(before.as_made, after.as_made, others) < 0:
            return False
        return is_significantly_better(before, after, others, least=clear_of(others))

    def _few(self, fold: int) -> list[int]:
        seen = np.flatnonzero(~self._parts[fold])
        return _spread([int(i) for i in seen], min(_FEW_SEEN, -(-len(seen) // 2)))

    def error(self, graph: gs.Graph, fold: int = 0) -> float:
        """Return the error of a model on held-out samples."""
        return self.each(graph).of(self._parts[fold]).relative

    def of_held_out(self, errors: Errors, fold: int = 0) -> tuple[float, float]:
        """Return the errors on held-out samples of the original model, and of another one."""
        held = self._parts[fold]
        return self._first.of(held).relative, errors.of(held).relative

    def best(self, fitted: Mapping[int, Errors]) -> int:
        """Return the fold of the model that gains most on all samples, from errors of models by fold.

        It errs no more on the samples that are held out from it than the original one, if any does so.
        """
        pairs = {fold: self.of_held_out(errors, fold) for fold, errors in fitted.items()}
        left = [fold for fold, (before, after) in pairs.items() if after <= before]
        return max(left or fitted, key=lambda fold: self.gain_of_all(fitted[fold]))

    def passes(self, fitted: Sequence[Errors], tried: int, *, clearly: bool = False) -> bool:
        """Return whether errors of models, fold by fold, are significantly less than those of the original.

        Samples without their copies may not have larger ones, and those that are held out have to be sure of
        the gain by themselves, by one standard error at least: copies differ from samples, and so may what
        they gain. Nor may the outputs as they are made lose on all samples, though weights are fitted to most
        of these: what is measured before a Softmax may gain where it changes nothing.
        ``tried``: how many were rejected before; ``clearly``: by as much as
        :func:`transforms.finetune.acceptance.clear_of` says, as always where some of few are held out.
        """
        held, pooled = self._held(fitted), self._pooled(fitted)
        if any(self._loses(one) for one in fitted) or _falls(self._first, pooled, np.ones_like(held)):
            return False
        clearly = clearly or not (self.can_choose or len(fitted) == self.folds)
        least = clear_of(held) if clearly else OPEN
        if pooled.own is not None:
            pair = self._first.without_copies, pooled.without_copies
            if not is_sure(*pair, held, tried, least if clearly else ONE):
                return False
        return is_significantly_better(self._first, pooled, held, tried, least)

    def is_hopeless(self, fitted: Sequence[Errors]) -> bool:
        """Return whether samples that others hold out need not be asked: they could hardly show a gain.

        Of many samples an output is harmed, which other layers may be spared; of few no output gains on half
        of them or more.
        """
        if self.can_choose:
            return bool(self.harmed(fitted))
        held = self._held(fitted)
        return bool(2 * held.sum() >= len(held)) and gains_nothing(self._first, self._pooled(fitted), held)

    def gain(self, fitted: Sequence[Errors]) -> float:
        """Return the gain on the samples that each of the models has not seen, in dB."""
        return gain(self._first, self._pooled(fitted), self._held(fitted))

    def harmed(self, fitted: Sequence[Errors]) -> list[str]:
        """Return the outputs that became worse, the worst first."""
        found = harmed(self._first, self._pooled(fitted), self._held(fitted))
        return [self._errors.names[i] for i in found]

    def lose_by_probes(self, fitted: Sequence[Errors]) -> bool:
        """Return whether probes alone can be why models are refused: then some layers lose there, too."""
        return self._loop is None and not self.harmed(fitted)

    def harmless_gain(self, graphs: Sequence[gs.Graph]) -> float | None:
        """Return the mean gain of models on all samples, in dB; None if an output became worse."""
        fitted = [self.each(graph) for graph in graphs]
        if self.harmed(fitted) or all(map(self.lost, graphs, fitted)):
            return None
        return float(np.mean([self.gain_of_all(one) for one in fitted]))

    def gain_of_all(self, after: Errors) -> float:
        """Return the gain of a model on all samples, in dB."""
        return gain(self._first, after, np.ones_like(self._parts[0]))

    def _lost_by_probes(self, graph: gs.Graph, errors: Errors) -> list[str]:
        """Return the output that lost most on probes if all together did, in the mean over both."""
        if not self._probes:
            return []
        gains = np.mean([gains_of_outputs(first, judge.each(graph)) for judge, first in self._probes], 0)
        if (1 - _OF_SAMPLES) * gains.mean() + _OF_SAMPLES * self.gain_of_all(errors) >= 0:
            return []
        return [self._errors.names[int(gains.argmin())]]

    def _loses(self, after: Errors) -> bool:
        every = np.ones_like(self._parts[0])
        return gain(self._first.without_copies, after.without_copies, every) < 0

    def _pooled(self, fitted: Sequence[Errors]) -> Errors:
        """Return errors of each model on the samples that it has not seen; of the first on all others."""

        def _of(given: Sequence[Float64Array]) -> Float64Array:
            found = given[0].copy()
            for part, own in zip(self._parts, given, strict=False):
                found[part] = own[part]
            return found

        own = [one.own for one in fitted if one.own is not None]
        made = [one.made for one in fitted if one.made is not None]
        errors = _of([one.errors for one in fitted])
        return Errors(errors, fitted[0].powers, _of(own) if own else None, _of(made) if made else None)

    def _held(self, fitted: Sequence[Errors]) -> NDArray[np.bool_]:
        return np.asarray(np.logical_or.reduce(self._parts[: len(fitted)]))


def _falls(before: Errors, after: Errors, part: NDArray[np.bool_]) -> bool:
    """Return whether outputs as they are made lose on a part of the samples.

    Of probabilities few samples have nearly all of the errors: they prove no gain, but this is what is used.
    """
    return before.made is not None and after.made is not None and loses(before.as_made, after.as_made, part)


def _fold_count(by_fold: Sequence[Sequence[int]], options: FinetuneOptions) -> int:
    """Return how many models may be fitted, which hold out samples as folds say; blocks are three."""
    held = len(by_fold[0])
    if held >= ENOUGH:
        return 1
    return len(by_fold) if held < FEW and not options.in_blocks else min(_FOLDS, len(by_fold))


def _spread(places: Sequence[int], count: int) -> list[int]:
    return [places[i * len(places) // count] for i in range(count)]


def _held_out(count: int, options: LayerwiseOptions) -> list[int]:
    return [i for i in range(count) if is_held_out(i, count, options)]
