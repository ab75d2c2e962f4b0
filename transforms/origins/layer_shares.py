"""What each layer of a quantized model adds to the errors of the outputs: sums of runs with it alone.

Errors of layers add up to first order, so one run of each layer alone on a few samples ranks all of them.
Those in front, which few samples do not tell apart, are measured on others, too: the more samples, the fewer
of them there are.
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
"""Runs by layers of the model, as each run takes all of them: half of these, or one run each, measure all
layers alone, the others those in front."""

FRONT = 0.75
"""The share of an error that the layers in front have."""


@dataclass(frozen=True)
class LayerShares:
    """What layers do, by their places.

    ``own``: the error that a layer makes of float inputs, at its output, ``every`` that of all layers there.
    ``shares``: by output of the model, [layers], of the errors that all make alone, in the mean over samples.
    """

    own: list[Sums]
    every: list[Sums]
    shares: dict[str, Float64Array]


def layer_shares(
    model: SwitchedLayers, feeds: Sequence[Feed], progress: Progress | None = None
) -> LayerShares:
    """Return what each layer does alone."""
    places = range(len(model.parts))
    runs = LAYER_RUNS // len(places)
    first = ranking(len(feeds), runs // 2, len(places), MOST_SAMPLES)
    trials = Trials(model, taken(feeds, first))
    own, every = _measured(trials, progress)
    shares = {name: _shares(trials, places, name) for name in model.outputs}
    front = sorted({place for one in shares.values() for place in _front(one)})
    others = [place for place in range(len(feeds)) if place not in first]
    count = min((runs - len(first) * len(places)) // max(len(front), 1), MOST_SAMPLES - len(first))
    more = spread(others, max(count, 0))
    if len(front) > 1 and more:
        again = Trials(model, taken(feeds, more))
        for count, place in enumerate(front, 1):
            again.on((place,))
            if progress:
                progress(len(places) + count, len(places) + len(front))
        for name, known in shares.items():
            seen = known[front].sum() * _shares(again, front, name)
            known[front] = (len(first) * known[front] + len(more) * seen) / (len(first) + len(more))
    return LayerShares(own, every, shares)


def _front(shares: Float64Array) -> list[int]:
    """Return the fewest layers that have most of an error."""
    order = np.argsort(-shares, kind="stable")
    count = int(np.searchsorted(np.cumsum(shares[order]), FRONT)) + 1
    return [int(place) for place in order[:count]]


def _shares(trials: Trials, places: Sequence[int], name: str) -> Float64Array:
    """Return the share of each of some layers in the errors that they make alone in an output."""
    errors = np.array([trials.errors((place,), name) for place in places])
    sums = errors.sum(0)
    seen = sums > 0
    return (errors[:, seen] / sums[seen]).mean(1) if seen.any() else np.zeros(len(errors))


def _measured(trials: Trials, progress: Progress | None) -> tuple[list[Sums], list[Sums]]:
    """Run each layer alone; return what that does to its own output, and what all layers do to it."""
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
