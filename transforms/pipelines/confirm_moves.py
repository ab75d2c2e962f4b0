"""Whether moved outliers make the outputs of the whole model better, on samples that gave it no ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array, Float64Array
from transforms.run.feeds import Feeds
from transforms.run.run_each import run_each, with_resting_threads
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme.outlier_move import OutlierMove

_LEAST_GAIN = 0.5  # dB, of the mean over outputs
_MOST_LOSS = 0.1  # dB, of any output
_CLEAR = 2.0  # dB, of the mean: more than the halves of samples differ by

SAMPLES = 16
"""Samples, evenly spread over the data, that decide: more change little and cost time."""

ROWS = 256
"""Rows of a tensor, of all samples together."""


@dataclass(frozen=True)
class Sample:
    """A feed, rows [rows, channels] of tensors by name, and the outputs of the float model."""

    feed: Feed
    rows: dict[str, Float32Array]
    outputs: Feed


Moves = Mapping[str, OutlierMove]
Choose = Callable[[Sequence[Sample]], Moves]
Quantize = Callable[[Moves, list[Feed]], gs.Graph]


def pick(feeds: Feeds) -> list[Feed]:
    """Return the feeds that decide; none of data that can be taken only once."""
    if not feeds.is_repeatable:
        return []
    step = step_of(feeds)
    return [feed for _, feed in islice(feeds, 0, SAMPLES * step, step)]


def step_of(feeds: Feeds) -> int:
    """Return how many feeds lie between two that decide, 1 if these are the first ones."""
    try:
        return max(1, len(feeds) // SAMPLES)
    except TypeError:
        return 1


def some_rows(array: Float32Array, count: int) -> Float32Array:
    """Return a copy of some rows of a tensor, along its last axis, evenly spread."""
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) <= count:
        return rows.copy()
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def is_better(new: Float64Array, old: Float64Array) -> bool:
    """Return whether outputs of some signal-to-noise ratios in dB are worth nodes that make them."""
    gains = _gains(new, old)
    return bool(gains.size and gains.mean() >= _LEAST_GAIN and gains.min() >= -_MOST_LOSS)


def _gains(new: Float64Array, old: Float64Array) -> Float64Array:
    with np.errstate(invalid="ignore"):
        return np.where(new == old, 0, new - old)


class Trial:
    """A way to choose moves, judged half by half: each half of the samples runs on a model of the other.

    ``choose`` returns moves, and ``quantize`` the model with them and ranges from some feeds. ``plain``: the
    trial without moves, which is the same for a half that asks for none.
    """

    def __init__(
        self,
        choose: Choose,
        quantize: Quantize,
        samples: Sequence[Sample],
        run: RunOptions | None,
        plain: Trial | None = None,
    ) -> None:
        """Measure nothing yet."""
        self._choose, self._quantize, self._samples, self._run = choose, quantize, samples, run
        self._plain = plain
        self._moves: dict[int, Moves] = {}
        self._sums: dict[int, list[Float64Array]] = {}

    def decibels(self, halves: int) -> Float64Array:
        """Return the signal-to-noise ratio of each output over so many halves; -inf if it is not finite."""
        return _decibels([sums for half in range(halves) for sums in self._of(half)])

    def of_half(self, half: int) -> Float64Array:
        """Return the ratios over one of the two halves."""
        return _decibels(self._of(half))

    @cached_property
    def moves(self) -> Moves:
        """The moves that all samples ask for."""
        return self._choose(self._samples)

    @property
    def models(self) -> int:
        """How many models were made and run."""
        return len(self._sums)

    def is_plain(self, half: int) -> bool:
        """Return whether a half of the samples asks for no moves."""
        return self._plain is not None and not self._moves_of(half)

    def _moves_of(self, half: int) -> Moves:
        if half not in self._moves:
            self._moves[half] = self._choose(self._samples[half::2])
        return self._moves[half]

    def _of(self, half: int) -> list[Float64Array]:
        if self._plain is not None and self.is_plain(half):
            return self._plain._of(half)
        if half not in self._sums:
            self._sums[half] = self._measured(half)
        return self._sums[half]

    def _measured(self, half: int) -> list[Float64Array]:
        options = replace(with_resting_threads(self._run), simulate=True)
        seen, held_out = self._samples[half::2], self._samples[1 - half :: 2]
        model = open_model(self._quantize(self._moves_of(half), [one.feed for one in seen]), options)
        return list(run_each(lambda one: _sums(one, model.run(one.feed)), held_out, self._run))


def is_worth_it(new: Trial, old: Trial, *, briefly: bool = False) -> bool:
    """Return whether moves make the outputs better; one half of the samples is enough if it is clear.

    ``old`` is the trial without moves, or made like it. A half without moves adds the same errors to both:
    they gain less over both halves than over the other one. ``briefly``: one half has to be enough, and the
    other to ask for moves, too.
    """
    first = int(new.is_plain(0))
    if new.is_plain(first) or (briefly and first):
        return False
    gains = _gains(new.of_half(first), old.of_half(first))
    clear = gains.size and (gains.mean() < -_CLEAR or (gains.mean() > _CLEAR and gains.min() >= 0))
    if briefly:
        return bool(clear and gains.mean() > 0 and not new.is_plain(1))
    if clear and not first:
        return bool(gains.mean() > 0)
    if new.is_plain(1 - first) and not (gains.size and np.maximum(gains, 0).mean() >= _LEAST_GAIN):
        return False
    return is_better(new.decibels(2), old.decibels(2))


def _decibels(sums: list[Float64Array]) -> Float64Array:
    signal, error = np.sum(sums, axis=0)
    with np.errstate(all="ignore"):
        decibels = 10 * np.log10(signal / error)
    return np.where(error == 0, np.inf, np.where(np.isfinite(decibels), decibels, -np.inf))


def _sums(sample: Sample, made: Feed) -> Float64Array:
    """Return the squares of the outputs and of their errors, [2, outputs]."""
    wanted = {name: array.astype(np.float64) for name, array in sample.outputs.items()}
    with np.errstate(all="ignore"):
        errors = [np.square(array - made[name]).sum() for name, array in wanted.items()]
    return np.array([[np.square(array).sum() for array in wanted.values()], errors])
