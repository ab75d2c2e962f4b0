"""Time of models that take turns, so that what else the machine does falls on all of them alike."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.runtime.session import OpenModel, RunOptions, open_session

FEWEST, _MOST = 5, 100
"""Runs of each graph whatever time they take, as quartiles of fewer say nothing, and at most."""

Seconds = Sequence[float]
"""Seconds of the runs of one model, in the order of the rounds."""

Timer = Callable[[Sequence[gs.Graph], Sequence[Feed], RunOptions, float], Sequence[Seconds]]
"""Returns the seconds of each of some models on some feeds; see :func:`time_graphs`."""


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


def saving(slow: Seconds, fast: Seconds) -> Timing:
    """Return how many seconds a model saves against another in the same rounds; below 0 if it is slower.

    It is faster, and not by chance, if the lower quartile is above 0: so it was in three of four rounds.
    """
    return Timing.of([one - other for one, other in zip(slow, fast, strict=True)])


def take_turns(
    models: Sequence[OpenModel],
    passes: Callable[[], Iterable[Sequence[Feed]]],
    runs: int,
    seconds: float,
    *,
    fewest: int = 1,
    enough: Callable[[Sequence[Seconds]], bool] | None = None,
) -> list[list[float]]:
    """Return the seconds of inferences of models, warm, which take turns on each sample.

    ``passes`` returns what is one pass over the samples: of each, a feed for each model. Another pass follows
    until every model ran ``runs`` times, or ``fewest`` times and ``seconds`` have gone, or the times are
    ``enough``. The first to run changes with each sample.
    """
    seconds_of: list[list[float]] = [[] for _ in models]
    end = time.perf_counter() + seconds
    while True:
        for feeds in passes():
            if not seconds_of[0]:
                for model, feed in zip(models, feeds, strict=True):
                    model.run(feed)  # the first run also allocates
            first = len(seconds_of[0])
            for i in range(len(models)):
                turn = (first + i) % len(models)
                start = time.perf_counter()
                models[turn].run(feeds[turn])
                seconds_of[turn].append(time.perf_counter() - start)
        is_done = (
            len(seconds_of[0]) >= runs
            or time.perf_counter() >= end
            or (enough is not None and enough(seconds_of))
        )
        if is_done and len(seconds_of[0]) >= fewest:
            return seconds_of


def time_graphs(
    graphs: Sequence[gs.Graph], feeds: Sequence[Feed], options: RunOptions, seconds: float
) -> list[list[float]]:
    """Return the seconds of inferences of graphs that take turns: 5 to 100, in about ``seconds``.

    Each takes what it reads of a feed, which are used in turns as well. Raises ValueError as ``open_session``
    does.
    """
    models = [open_session(graph, options) for graph in graphs]
    names = [[str(tensor.name) for tensor in graph.inputs] for graph in graphs]
    samples = itertools.cycle(feeds)

    def _one() -> Iterable[Sequence[Feed]]:
        feed = next(samples)
        return [[{name: feed[name] for name in read} for read in names]]

    return take_turns(models, _one, _MOST, seconds, fewest=FEWEST)
