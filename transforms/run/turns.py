"""Time on the processor of models that take turns, so that what else the machine does hardly counts.

The wall clock of a busy machine tells of the others on it: a model that takes 1.1 times the time of another
was seen at 0.1 to 34 times. The processor counts the time that it works for a thread, and not the time for
which that waits. What others do is left in it as caches that are cold, for models that take turns alike.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Protocol

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.runtime.session import OpenModel, RunOptions, open_session, provider_name

FEWEST, _MOST = 5, 100
"""Runs of each graph whatever time they take, as quartiles of fewer say nothing, and at most."""

_PATIENCE = 3
"""Times as many seconds on the wall as of the processor after which turns have been taken for long enough."""

_CPU = "CPUExecutionProvider"
_COARSE = 1e-4
"""Seconds between two times of a clock from which on it does not tell how long an inference takes."""

_CLEAR = 5
"""By how many rounds one side of a bound has to lead until more rounds would not change the answer.

This is Wald's sequential test (Ann. Math. Stat. 16 (1945), 117) of whether the ratio of two models is below
the bound in three of four rounds, or in one of four: a round changes the odds by a factor of 3, so that a
lead of 5 is wrong in 1 of 1 + 3 ** 5 = 244 tests. Of a ratio near the bound, quartiles tell when time is up.
"""

Clock = Callable[[], float]
"""Returns seconds since some moment."""

Seconds = Sequence[float]
"""Seconds of the runs of one model, in the order of the rounds."""

Until = Callable[[Sequence[Seconds]], bool]
"""Whether the seconds of all models so far are enough."""


class Timer(Protocol):
    """Returns the seconds of each of some models on some feeds; see :func:`time_graphs`."""

    def __call__(
        self,
        graphs: Sequence[gs.Graph],
        feeds: Sequence[Feed],
        options: RunOptions,
        seconds: float,
        bound: float | None = None,
        /,
    ) -> Sequence[Seconds]:
        """Time the models."""


@dataclass(frozen=True)
class Timing:
    """Seconds of an inference: the median of ``runs`` of them, and the quartiles around it."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, seconds: Seconds) -> Timing:
        """Return the timing of one run or more."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0], 1)
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def timed_options(options: RunOptions) -> RunOptions:
    """Return how models run that are timed: on one thread unless more are asked for.

    The time of one thread is that of a run on a processor that is free, and hardly scatters. Threads wait for
    each other, more so on a busy machine; none of them spins, which would count as work.
    """
    return replace(options, threads=options.threads or 1, spin=False)


def clock_for(options: RunOptions) -> Clock:
    """Return the clock of inferences of models that are opened with ``timed_options``.

    Of one thread, the calling one, it is the processor's time of that thread (``time.thread_time``), so that
    other threads of the process do not count; of several, that of the process, summed over its threads
    (``time.process_time``). Neither knows what another device does, and some systems count them in steps of
    16 ms (Windows): there it is the time on the wall (``time.perf_counter``).
    """
    clock = time.thread_time if options.threads == 1 else time.process_time
    is_of_use = provider_name(options.provider) == _CPU and _step(clock) < _COARSE
    return clock if is_of_use else time.perf_counter


@cache
def _step(clock: Clock) -> float:
    """Return the seconds between two times that a clock tells."""
    start = now = clock()
    while now == start:
        now = clock()
    return now - start


def ratio(made: Seconds, before: Seconds) -> Timing:
    """Return how many times as long as one model another takes: median and quartiles of all rounds.

    Both runs of a round are neighbours in time.
    """
    return Timing.of([one / other for one, other in zip(made, before, strict=True)])


def is_clear(bound: float, pair: Sequence[Seconds]) -> bool:
    """Return whether it is clear that a model takes less than ``bound`` times as long as another, or more."""
    made, before = pair
    below = sum(one < bound * other for one, other in zip(made, before, strict=True))
    return abs(2 * below - len(made)) >= _CLEAR


def take_turns(
    models: Sequence[OpenModel],
    passes: Callable[[], Iterable[Sequence[Feed]]],
    runs: int,
    seconds: float,
    *,
    clock: Clock,
    fewest: int = 1,
    until: Until | None = None,
) -> list[list[float]]:
    """Return the seconds of inferences of models, warm, which take turns on each sample, in their order.

    ``passes`` returns what is one pass over the samples: of each, a feed for each model. Another pass follows
    until every model ran ``runs`` times, or ``fewest`` times and either inferences took ``seconds`` by the
    ``clock``, or three times as many have gone on the wall, or ``until`` says that what was timed is enough.
    Each model follows the same one, so that it finds caches alike: if turns changed, a half of the ratios
    would be of a cold run to a warm one.
    """
    seconds_of: list[list[float]] = [[] for _ in models]
    end = time.perf_counter() + _PATIENCE * seconds
    while True:
        for feeds in passes():
            if not seconds_of[0]:
                for model, feed in zip(models, feeds, strict=True):
                    model.run(feed)  # the first run also allocates
            for model, feed, taken in zip(models, feeds, seconds_of, strict=True):
                start = clock()
                model.run(feed)
                taken.append(clock() - start)
        count, spent = len(seconds_of[0]), sum(map(sum, seconds_of))
        is_over = count >= runs or spent >= seconds or time.perf_counter() >= end
        is_done = is_over or (until is not None and until(seconds_of))
        if is_done and count >= fewest:
            return seconds_of


class Turns:
    """Times graphs, and keeps those of the last call open: of a search, one takes turns with many others.

    They may not be changed.
    """

    def __init__(self) -> None:
        """Open nothing yet."""
        self._open: list[tuple[gs.Graph, RunOptions, OpenModel]] = []

    def __call__(
        self,
        graphs: Sequence[gs.Graph],
        feeds: Sequence[Feed],
        options: RunOptions,
        seconds: float,
        bound: float | None = None,
        /,
    ) -> list[list[float]]:
        """Return the seconds of inferences of graphs that take turns, as :func:`time_graphs`."""
        options = timed_options(options)
        models = [self._opened(graph, options) for graph in graphs]
        self._open = [(graph, options, model) for graph, model in zip(graphs, models, strict=True)]
        names = [[str(tensor.name) for tensor in graph.inputs] for graph in graphs]
        samples = itertools.cycle(feeds)

        def _one() -> Iterable[Sequence[Feed]]:
            feed = next(samples)
            return [[{name: feed[name] for name in read} for read in names]]

        until = None if bound is None else partial(is_clear, bound)
        return take_turns(models, _one, _MOST, seconds, clock=clock_for(options), fewest=FEWEST, until=until)

    def _opened(self, graph: gs.Graph, options: RunOptions) -> OpenModel:
        kept = (model for other, how, model in self._open if other is graph and how == options)
        return next(kept, None) or open_session(graph, options)


def time_graphs(
    graphs: Sequence[gs.Graph],
    feeds: Sequence[Feed],
    options: RunOptions,
    seconds: float,
    bound: float | None = None,
    /,
) -> list[list[float]]:
    """Return the seconds of inferences of graphs that take turns: 5 to 100, in about ``seconds``.

    ``bound``: of two graphs, rounds end when it is clear whether the first takes less than so many times as
    long as the second (:func:`is_clear`).

    All are of the processor, see :func:`clock_for`. Each graph takes what it reads of a feed, which are used
    in turns as well. Raises ValueError as ``open_session`` does.
    """
    return Turns()(graphs, feeds, options, seconds, bound)
