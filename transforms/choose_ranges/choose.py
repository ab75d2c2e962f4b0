"""Choosing the setting of a scheme that leaves some of it to the outputs of the model.

Settings are compared as whole models on samples that gave them no ranges: the statistics of every second
sample serve the samples between. One key after the other is tried on top of the best setting so far, from
what the scheme's rules give (:meth:`transforms.scheme.Scheme.by_rule`), and a step is taken only for a gain
that can be counted on: what the samples show, weighed with what such a step does to other models, less half
its standard error. A single sample decides nothing.

A :class:`Candidate` is any other change of the scheme, or a rewrite of the float graph: a rewritten copy is
measured anew, with the best setting so far.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate import Calibration, Progress
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan, options_of
from transforms.choose_ranges.bench import Bench
from transforms.choose_ranges.measure_outputs import Score, drags, gain
from transforms.choose_ranges.parameters import PlanOf
from transforms.choose_ranges.setting import Setting, WeightKind, setting_of
from transforms.choose_ranges.work import samples_for
from transforms.run.feeds import Feeds
from transforms.runtime.inputs import model_inputs
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO

log = logging.getLogger(__name__)

MOST_SAMPLES = 32
"""Samples that settings are compared on: the first ones; ranges come from all."""

_LEAST = 0.1  # dB that a step has to bring for sure
_SPREAD = 1.5  # dB: by how much a step changes models that it was tried on
_OF_CORRECTION = 1.0  # dB that corrected biases bring on average


@dataclass(frozen=True)
class Candidate:
    """A variant of a quantization: other keys of the scheme, and what is done to the float graph."""

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    rewrite: Callable[[gs.Graph], int] | None = None


@dataclass(frozen=True)
class Chosen:
    """The scheme with nothing left open, its ranges, and a line that says why."""

    scheme: Scheme
    calibration: Calibration | None
    note: str = ""


def choose_settings(
    graph: gs.Graph,
    scheme: Scheme,
    plan_of: PlanOf,
    data: CalibrationData,
    *,
    progress: Progress | None = None,
) -> Chosen:
    """Measure a prepared graph and return the best setting of a scheme for it; the graph is not changed.

    ``plan_of`` makes the plan of a scheme for the graph, or a copy of it. What the scheme says is kept; what
    it leaves ``auto`` is chosen. Raises as :func:`transforms.calibrate.calibrate_plan.calibrate_plan` does.
    """
    ruled = scheme.by_rule()
    remembered = _Remembered(data.feeds(graph), graph)
    plans = [
        plan_of(graph, ruled.with_(**kind.changes, **_corrects(scheme))) for kind in _measured_kinds(scheme)
    ]
    calibration = calibrate_plan(
        plans, replace(data, source=remembered.feeds), progress=progress, halved=True
    )
    if calibration is None:
        return Chosen(ruled, None)
    feeds = remembered.take(MOST_SAMPLES)
    by_rule = Chosen(ruled, calibration.with_(options_of(ruled)))
    if len(feeds) < 2:
        return replace(by_rule, note="Ranges by rule: 1 sample is too few to choose by")
    feeds = feeds[: samples_for(graph, calibration, remembered.count, len(feeds))]
    bench = Bench(graph, ruled, plan_of, calibration, feeds, data.run)
    search = _Search(bench, setting_of(ruled))
    for step in _steps(scheme):
        search.take(step)
    return Chosen(
        found := _resolved(ruled, search.best), calibration.with_(options_of(found)), search.line(len(feeds))
    )


def _resolved(ruled: Scheme, best: Setting) -> Scheme:
    return ruled.with_(calibrate_method=best.method, correct_biases=best.corrected, **best.kind.changes)


class _Search:
    """The best setting so far, and what it is compared with."""

    def __init__(self, bench: Bench, start: Setting) -> None:
        self._bench, self._start = bench, start
        self.best, self._score = start, bench.score(start)
        self._first = self._score
        self._tried = 1
        log.info("%s: %.2f dB", start, self._score.mean)

    def take(self, step: _Step) -> None:
        """Go to the best of the settings that a step leads to, if it is better for sure."""
        found: list[tuple[float, Setting, Score]] = []
        for setting in step.settings(self.best):
            if setting == self.best:
                continue
            score = self._bench.score(setting)
            self._tried += 1
            shown = gain(score, self._score)
            known = shown.shrunk(step.expected, _SPREAD)
            log.info("%s: %.2f dB, %+.2f +- %.2f", setting, score.mean, shown.decibels, shown.error)
            if known.sure > _LEAST and not drags(score, self._first):
                found.append((known.sure, setting, score))
        if found:
            _, self.best, self._score = max(found, key=lambda one: one[0])

    def line(self, samples: int) -> str:
        """Say what was chosen, and what it is worth."""
        before, after = self._first.mean, self._score.mean
        said = f"{after:.1f} dB on {samples} held-out samples, {self._tried} settings tried"
        if self.best == self._start:
            return f"Ranges chosen by outputs: {self.best}, by rule ({said})"
        return f"Ranges chosen by outputs: {self.best} ({said}; by rule {before:.1f} dB)"


@dataclass(frozen=True)
class _Step:
    """Settings to go to from the best so far, and the gain in dB that such a step has on other models."""

    settings: Callable[[Setting], Sequence[Setting]]
    expected: float = 0.0


def _steps(scheme: Scheme) -> Iterator[_Step]:
    if scheme.correct_biases == AUTO:
        yield _Step(lambda best: [best.with_(corrected=True)], _OF_CORRECTION)
    if kinds := _kinds(scheme):
        yield _Step(lambda best: [best.with_(kind=kind) for kind in kinds])
    if scheme.calibrate_method == AUTO and not scheme.moving_average:
        methods = ("MinMax", "MSE")
        yield _Step(lambda best: [best.with_(method=method) for method in methods])


def _kinds(scheme: Scheme) -> list[WeightKind]:
    """Return the kinds of weights that a scheme leaves open."""
    if scheme.per_channel != AUTO:
        return []
    methods = ("MSE", "MinMax", "WeightedMSE") if scheme.weight_method == AUTO else (scheme.weight_method,)
    return [*(WeightKind(True, method) for method in methods), WeightKind(False, scheme.weight_method)]


def _measured_kinds(scheme: Scheme) -> list[WeightKind]:
    """Return kinds whose plans together need all that any setting does."""
    if scheme.per_channel != AUTO:
        return [WeightKind(scheme.per_channel, scheme.weight_method)]
    weighted = "WeightedMSE" if scheme.weight_method == AUTO else scheme.weight_method
    return [WeightKind(True, weighted), WeightKind(False, scheme.weight_method)]


def _corrects(scheme: Scheme) -> dict[str, bool]:
    return {"correct_biases": scheme.correct_biases is not False}


class _Remembered:
    """Feeds of which the first ones can be taken again, even if the source cannot."""

    def __init__(self, feeds: Feeds, graph: gs.Graph) -> None:
        self._source, self._first, self.count = feeds, list[Feed](), 0
        known = {"count": operator.length_hint(feeds, 0) or None, "is_repeatable": feeds.is_repeatable}
        self.feeds = Feeds(self._remember, model_inputs(graph), **known)

    def _remember(self) -> Iterator[tuple[str, Feed]]:
        self.count = 0
        for name, feed in self._source:
            self.count += 1
            if not self._source.is_repeatable and len(self._first) < MOST_SAMPLES:
                self._first.append(feed)
            yield name, feed

    def take(self, most: int) -> list[tuple[int, Feed]]:
        """Return the first feeds with the halves that they belong to."""
        first = self._first or [feed for _, feed in islice(self._source, most)]
        return [(number % 2, feed) for number, feed in enumerate(first)]
