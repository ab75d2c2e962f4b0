"""Where the error of a quantized model begins: what each layer adds, what it inherits, what that does.

Errors that layers make alone add up in the outputs as far as those are small beside the signal. They rank the
layers, every sample alike; how many of them are named is measured: as many as, put back to float together,
take half of the error with them, and more than all others do (:mod:`transforms.origins.carries_half`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed, Float64Array
from ops.metrics import Sums
from transforms.graph.output_view import output_view
from transforms.judge.constants import ENOUGH
from transforms.judge.sample_roles import comparing, ranking, taken
from transforms.origins.carries_half import carries_half
from transforms.origins.input_ranges import InputRange, input_ranges
from transforms.origins.loss_causes import Cause, cause_of
from transforms.precision.chosen import Part
from transforms.precision.switched_layers import SwitchedLayers, Trials
from transforms.run.events import Progress
from transforms.runtime.session import RunOptions

RUNS = 512
"""Runs in which layers are measured alone: on as many samples as come to that, one at least."""

MOST_CAUSES = 12
"""Layers of an output whose cause is looked for."""


@dataclass(frozen=True)
class LayerLoss:
    """What one layer does.

    SQNR of its output in dB: ``own`` with float inputs, ``total`` with all errors up to it, ``inherited``
    what is left of that without its own. ``shares``: by output, of the errors that layers make there alone,
    in the mean over samples.
    """

    part: Part
    own: float
    total: float
    inherited: float
    shares: dict[str, float]


@dataclass(frozen=True)
class OutputLoss:
    """An output: its SQNR in dB, and the layers that hold half of its error or more, by their places.

    ``named``: those of most error first; ``without``: the SQNR with them in float, ``others``: that with all
    other layers in float instead. ``share``: of the squared error that goes with them. ``is_cache``: whether
    it is a cache beside logits (:mod:`transforms.graph.output_view`).
    """

    name: str
    sqnr: float
    named: tuple[int, ...]
    without: float
    others: float
    share: float
    is_cache: bool


@dataclass(frozen=True)
class LossOrigins:
    """The layers in the order of the model, and the outputs, those that matter most first.

    ``causes``: of the layers that are named, by their places. ``inputs``: the ranges of the samples.
    """

    layers: list[LayerLoss]
    outputs: list[OutputLoss]
    samples: int
    unpaired: tuple[str, ...]
    causes: Mapping[int, Cause]
    inputs: Sequence[InputRange]

    @property
    def main(self) -> OutputLoss:
        """The output of the largest error that is not a cache."""
        return self.outputs[0]

    def first(self) -> LayerLoss | None:
        """Return the first of the layers named for the main output in the order of the model."""
        return self.layers[min(self.main.named)] if self.main.named else None


def find_origins(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    feeds: Sequence[Feed],
    run: RunOptions | None = None,
    progress: Progress | None = None,
) -> LossOrigins:
    """Return where the loss of a quantized model begins, on the first of some feeds.

    ``float_graph`` is the float model in the form that was quantized; both graphs are changed. Raises
    ValueError as :class:`SwitchedLayers` does, without a feed and without an output of floats.
    """
    caches = output_view(float_graph).caches
    return origins_of(SwitchedLayers(float_graph, quantized_graph, run), feeds, caches, progress)


def origins_of(
    model: SwitchedLayers,
    feeds: Sequence[Feed],
    caches: Collection[str] = (),
    progress: Progress | None = None,
) -> LossOrigins:
    """Return the same of a model that is open; ``caches``: outputs that come last."""
    if not feeds:
        raise ValueError("there are no samples to find the origins of errors on")
    if not model.outputs:
        raise ValueError("the model has no output of a floating type to compare")
    ranked = ranking(len(feeds), RUNS, len(model.parts), ENOUGH)
    trials = Trials(model, taken(feeds, set(ranked)))
    own, every = _measured(trials, progress)
    shares = {name: _shares(trials, name) for name in model.outputs}
    layers = [
        LayerLoss(
            part,
            own[i].sqnr(),
            every[i].sqnr(),
            _rest(every[i], own[i]).sqnr(),
            {name: float(found[i]) for name, found in shares.items()},
        )
        for i, part in enumerate(model.parts)
    ]
    together = Trials(model, taken(feeds, set(comparing(len(feeds)))))
    outputs = [_output(together, name, layers, is_cache=name in caches) for name in model.outputs]
    outputs.sort(key=lambda one: (one.is_cache, one.sqnr))
    named = dict.fromkeys(place for one in outputs for place in one.named[:MOST_CAUSES])
    causes = {place: _cause(trials, model.parts[place]) for place in named}
    ranges = input_ranges(model.readings.values(), feeds)
    return LossOrigins(layers, outputs, len(together.feeds), tuple(model.unpaired), causes, ranges)


def _shares(trials: Trials, name: str) -> Float64Array:
    """Return the share of each layer in the errors that all make alone in an output, [layers]."""
    errors = np.array([trials.errors((i,), name) for i in range(len(trials.model.parts))])
    sums = errors.sum(0)
    seen = sums > 0
    return (errors[:, seen] / sums[seen]).mean(1) if seen.any() else np.zeros(len(errors))


def _cause(trials: Trials, part: Part) -> Cause:
    model = trials.model
    seen: dict[str, list[AnyArray]] = {}
    for feed in trials.feeds:
        for name, array in model.sources(part, feed).items():
            seen.setdefault(name, []).append(array)
    return cause_of([one for name in part.nodes for one in model.readings[name]], seen)


def _measured(trials: Trials, progress: Progress | None) -> tuple[list[Sums], list[Sums]]:
    """Measure each layer alone; return what that does to its own output, and what all layers do to it."""
    model, parts = trials.model, trials.model.parts
    own, every = [Sums() for _ in parts], [Sums() for _ in parts]
    shown = list(dict.fromkeys(part.shown for part in parts))
    floats = []
    for feed in trials.feeds:
        plain, made = model.run(feed, (), shown), model.run(feed, trials.everything, shown)
        floats.append(plain)
        for i, part in enumerate(parts):
            _add(every[i], plain, made, part.shown)
    for i, part in enumerate(parts):
        names = list(dict.fromkeys((*model.outputs, part.shown)))
        found = [model.run(feed, (i,), names) for feed in trials.feeds]
        trials.keep((i,), found)
        for plain, made in zip(floats, found, strict=True):
            _add(own[i], plain, made, part.shown)
        if progress:
            progress(i + 1, len(parts))
    return own, every


def _add(sums: Sums, plain: Feed, made: Feed, name: str) -> None:
    if plain[name].shape == made[name].shape:
        sums.add(plain[name], made[name])


def _rest(total: Sums, own: Sums) -> Sums:
    """Return the errors of a layer without its own, which are taken to be independent."""
    error = max(total.error_energy - own.error_energy, 0.0)
    return Sums(total.count, total.baseline_energy, error_energy=error, peak=total.peak)


def _output(trials: Trials, name: str, layers: Sequence[LayerLoss], *, is_cache: bool) -> OutputLoss:
    """Return an output with the fewest layers, in the order of their share, that hold half of its error."""
    every = trials.everything
    ranked = sorted(every, key=lambda i: (-layers[i].shares[name], i))
    whole, sqnr = trials.errors(every, name), trials.pooled(every, name).sqnr()

    def _holds(count: int) -> bool:
        those = frozenset(ranked[:count])
        return carries_half(whole, trials.errors(every - those, name), trials.errors(those, name))

    if not whole.any():
        return OutputLoss(name, sqnr, (), sqnr, sqnr, 0.0, is_cache)
    low, high = 0, len(ranked)  # all of them do, none does not
    while high - low > 1:
        middle = min((low + high) // 2, 2 * low + 1)
        low, high = (low, middle) if _holds(middle) else (middle, high)
    named = tuple(ranked[:high])
    left, others = trials.pooled(every.difference(named), name), trials.pooled(named, name)
    share = 1 - left.error_energy / float(whole.sum())
    return OutputLoss(name, sqnr, named, left.sqnr(), others.sqnr(), share, is_cache)
