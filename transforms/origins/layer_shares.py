"""The share of each layer in the errors of the outputs, from runs with that layer alone quantized.

Errors of layers add up to first order, so one run of each layer alone on a few samples ranks all of them.
The layers in front, which few samples do not separate, are measured on more samples: the fewer they are, the
more samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import Feed, Float64Array
from ops.metrics import Sums
from transforms.judge.constants import MOST_SAMPLES
from transforms.judge.sample_roles import ranking, taken
from transforms.precision.switched_layers import SwitchedLayers, Trials
from transforms.run.events import Progress
from transforms.run.feeds import spread

LAYER_RUNS = 50_000
"""Budget of model runs divided by the number of layers, since each run takes the time of all of them. Half
of them, or one run each, measure all layers alone; the rest measure those in front."""

FRONT = 0.75
"""The share of an error that the layers in front have together."""


@dataclass(frozen=True)
class LayerShares:
    """Errors caused by layers, by their places.

    ``own``: the error of a layer's output with float inputs, ``every``: with all layers quantized.
    ``shares``: by output of the model, [layers], the layer's share of the errors made alone, averaged over
    samples.
    """

    own: list[Sums]
    every: list[Sums]
    shares: dict[str, Float64Array]


def layer_shares(
    model: SwitchedLayers, feeds: Sequence[Feed], progress: Progress | None = None
) -> LayerShares:
    """Measure each layer alone."""
    places = range(len(model.parts))
    runs = LAYER_RUNS // len(places)
    first = ranking(len(feeds), runs // 2, len(places), MOST_SAMPLES)
    trials = Trials(model, taken(feeds, first))
    alone, all_layers = _measured(trials, progress)
    shares = {name: _shares(trials, places, name) for name in model.outputs}
    front = sorted({place for layer_share in shares.values() for place in _front(layer_share)})
    unused = [place for place in range(len(feeds)) if place not in first]
    count = min((runs - len(first) * len(places)) // max(len(front), 1), MOST_SAMPLES - len(first))
    more = spread(unused, max(count, 0))
    if len(front) > 1 and more:
        again = Trials(model, taken(feeds, more))
        for count, place in enumerate(front, 1):
            again.on((place,))
            if progress:
                progress(len(places) + count, len(places) + len(front))
        for name, mean_shares in shares.items():
            seen = mean_shares[front].sum() * _shares(again, front, name)
            mean_shares[front] = (len(first) * mean_shares[front] + len(more) * seen) / (
                len(first) + len(more)
            )
    return LayerShares(alone, all_layers, shares)


def _front(shares: Float64Array) -> list[int]:
    """Return the fewest layers that have ``FRONT`` of an error."""
    order = np.argsort(-shares, kind="stable")
    count = int(np.searchsorted(np.cumsum(shares[order]), FRONT)) + 1
    return [int(place) for place in order[:count]]


def _shares(trials: Trials, places: Sequence[int], name: str) -> Float64Array:
    """Return the shares of some layers in the errors that they cause alone in an output."""
    errors = np.array([trials.errors((place,), name) for place in places])
    sums = errors.sum(0)
    seen = sums > 0
    return (errors[:, seen] / sums[seen]).mean(1) if seen.any() else np.zeros(len(errors))


def _measured(trials: Trials, progress: Progress | None) -> tuple[list[Sums], list[Sums]]:
    """Run each layer alone; return the errors of its output, alone and with all layers quantized."""
    model, layers = trials.model, trials.model.parts
    alone, all_layers = [Sums() for _ in layers], [Sums() for _ in layers]
    shown = list(dict.fromkeys(layer.shown for layer in layers))
    floats = []
    for feed in trials.feeds:
        plain, rounded = model.run(feed, (), shown), model.run(feed, trials.everything, shown)
        floats.append(plain)
        for i, layer in enumerate(layers):
            _add(all_layers[i], plain, rounded, layer.shown)
    for i, layer in enumerate(layers):
        names = list(dict.fromkeys((*model.outputs, layer.shown)))
        results = [model.run(feed, (i,), names) for feed in trials.feeds]
        trials.keep((i,), results)
        for plain, rounded in zip(floats, results, strict=True):
            _add(alone[i], plain, rounded, layer.shown)
        if progress:
            progress(i + 1, len(layers))
    return alone, all_layers


def _add(sums: Sums, plain: Feed, rounded: Feed, name: str) -> None:
    if plain[name].shape == rounded[name].shape:
        sums.add(plain[name], rounded[name])
