"""Processor time of models that run in turns, so that other load on the machine hardly matters.

Wall-clock time on a busy machine depends on other processes: a model that takes 1.1 times as long as another
was measured at 0.1 to 34 times. Processor time counts while a thread works, and not while it waits. Other
processes still leave caches cold, which affects models that take turns alike.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.runtime.session import OpenModel, RunOptions, open_session, provider_name

FEWEST, _MOST = 5, 100
"""Runs of each graph: at least, however long they take, since quartiles need as many; and at most."""

_PATIENCE = 3
"""The limit of wall-clock time, as a multiple of that of processor time."""

_CPU = "CPUExecutionProvider"
_COARSE = 1e-4
"""The resolution of a clock, in seconds, from which on it is too coarse to time an inference."""

_CLEAR = 5
"""The lead in rounds of one side of a bound at which the comparison ends.

This is Wald's sequential test (Ann. Math. Stat. 16 (1945), 117) of whether the ratio of two models is below
the bound in three of four rounds, or in one of four: a round changes the odds by a factor of 3, so that a
lead of 5 is wrong in 1 of 1 + 3 ** 5 = 244 tests. For a ratio near the bound, the test runs out of time
without a decision, and quartiles decide.
"""

Clock = Callable[[], float]
"""Returns the seconds since an arbitrary start."""

Seconds = Sequence[float]
"""Seconds of the runs of one model, in the order of the rounds."""

Until = Callable[[Sequence[Seconds]], bool]
"""Returns whether the measured seconds of all models are enough."""


Timer = Callable[[Sequence[gs.Graph], Sequence[Feed], RunOptions, float, float | None], Sequence[Seconds]]
"""Returns the seconds of each model on the feeds; see :class:`Turns`."""


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
    """Return the options with which models are timed: one thread unless ``options`` asks for more.

    The processor time of one thread hardly depends on the load of the machine. Several threads wait for each
    other, more so on a busy machine; none of them spins, which would count as work.
    """
    return replace(options, threads=options.threads or 1, spin=False)


def clock_for(options: RunOptions) -> Clock:
    """Return the clock for inferences of models that are opened with ``timed_options``.

    With one thread, the calling one, it is the processor time of that thread (``time.thread_time``), so that
    other threads of the process do not count; with several, that of the process, summed over its threads
    (``time.process_time``). Neither covers work on another device, and some systems count them in steps of
    16 ms (Windows): in these cases it is wall-clock time (``time.perf_counter``).
    """
    clock = time.thread_time if options.threads == 1 else time.process_time
    is_of_use = provider_name(options.provider) == _CPU and _step(clock) < _COARSE
    return clock if is_of_use else time.perf_counter


@cache
def _step(clock: Clock) -> float:
    """Return the resolution of a clock in seconds."""
    start = now = clock()
    while now == start:
        now = clock()
    return now - start


def ratio(made: Seconds, before: Seconds) -> Timing:
    """Return the time of a model divided by that of another: median and quartiles over all rounds.

    Both runs of a round directly follow each other.
    """
    return Timing.of([seconds / base for seconds, base in zip(made, before, strict=True)])


def is_clear(bound: float, pair: Sequence[Seconds]) -> bool:
    """Return whether it is clear that a model takes less than ``bound`` times as long as another, or more."""
    first, second = pair
    below = sum(seconds < bound * base for seconds, base in zip(first, second, strict=True))
    return abs(2 * below - len(first)) >= _CLEAR


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
    """Return the seconds of warm inferences of each model; on each sample the models run in order.

    ``passes`` returns one pass over the samples: for each sample, a feed for each model. Passes are repeated
    until every model ran ``runs`` times, or ``fewest`` times and either inferences took ``seconds`` by the
    ``clock``, or three times as much wall-clock time has passed, or ``until`` returns true. Each model always
    follows the same one, and so finds caches in the same state: in a changing order, half of the ratios would
    compare a cold run with a warm one.
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
    """Times graphs, and keeps the sessions of the last call open: a search times one graph with many others.

    The graphs must not be changed between calls.
    """

    def __init__(self) -> None:
        """Start without open sessions."""
        self._open: list[tuple[gs.Graph, RunOptions, OpenModel]] = []

    def __call__(
        self,
        graphs: Sequence[gs.Graph],
        feeds: Sequence[Feed],
        options: RunOptions,
        seconds: float,
        bound: float | None = None,
    ) -> list[list[float]]:
        """Return the seconds of 5 to 100 inferences of each graph, in turns, in about ``seconds`` in all.

        ``bound``: with two graphs, stop as soon as it is clear whether the time of the first is below
        ``bound`` times that of the second (:func:`is_clear`).

        Times are processor time, see :func:`clock_for`. Each round takes the next of the feeds; a graph reads
        its own inputs from it. Raises ValueError as ``open_session`` does.
        """
        options = timed_options(options)
        models = [self._opened(graph, options) for graph in graphs]
        self._open = [(graph, options, model) for graph, model in zip(graphs, models, strict=True)]
        names = [[str(tensor.name) for tensor in graph.inputs] for graph in graphs]
        samples = itertools.cycle(feeds)

        def _next_sample() -> Iterable[Sequence[Feed]]:
            feed = next(samples)
            return [[{name: feed[name] for name in read} for read in names]]

        until = None if bound is None else partial(is_clear, bound)
        return take_turns(
            models, _next_sample, _MOST, seconds, clock=clock_for(options), fewest=FEWEST, until=until
        )

    def _opened(self, graph: gs.Graph, options: RunOptions) -> OpenModel:
        still_open = (model for other, how, model in self._open if other is graph and how == options)
        return next(still_open, None) or open_session(graph, options)
