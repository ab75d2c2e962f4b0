"""Samples that a choice is judged on, kept apart from those that it is made on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibration import FOLDS
from transforms.calibrate.calibration_data import CalibrationData
from transforms.graph.some_names import counted
from transforms.judge.constants import FEWEST, GOAL_EVERY, MOST_SAMPLES
from transforms.judge.sample_roles import goal_judging, goal_period, taken
from transforms.run.feeds import Feeds
from transforms.runtime.inputs import model_inputs

GATE_EVERY = 2
"""Of so many samples, one judges a gate: answers tell less of a model than decibels do."""


MOST_OF_GATES = 256
"""Samples that judge a gate at most: a share of answers is told as well as decibels by ten times as many."""


@dataclass(frozen=True)
class HeldOut:
    """Data to quantize with, and feeds to judge on, with their ``places`` in the data.

    ``is_apart``: whether they are others; ``in_folds``: whether each is judged in a model without its ranges.
    """

    data: CalibrationData
    feeds: Sequence[Feed]
    is_apart: bool
    places: Sequence[int] = ()
    in_folds: bool = False

    def digest(self, graph: gs.Graph) -> str:
        """Return a SHA-256 of the feeds to judge on, for the inputs of a model."""
        named = [(str(place), feed) for place, feed in zip(self.places, self.feeds, strict=True)]
        return Feeds(lambda: named, model_inputs(graph)).hash()

    @property
    def where(self) -> str:
        """The feeds to judge on, in words."""
        if self.is_apart:
            return counted(len(self.feeds), "held-out sample")
        samples = counted(len(self.feeds), "sample")
        if self.in_folds:
            return f"{samples} held out in {min(FOLDS, len(self.feeds))} folds"
        return f"{samples}, too few to hold any out"


def hold_out(
    data: CalibrationData,
    graph: gs.Graph,
    every: int = GOAL_EVERY,
    most: int = MOST_SAMPLES,
    *,
    in_folds: bool = False,
) -> HeldOut:
    """Return the data without the samples that judge a goal, and those; of few samples, all are both.

    ``every``: of so many at most one judges, ``most`` in all. ``in_folds``: the first so many judge, which
    are among the data, for a model is made for each fold.

    :func:`transforms.judge.sample_roles.goal_judging` says which. Raises ValueError for data that can be read
    once only.
    """
    feeds = data.feeds(graph)
    if not feeds.is_repeatable:
        raise ValueError("samples from a reader or a generator cannot be read twice: give a folder or a list")
    count = sum(1 for _ in feeds)
    period = goal_period(count, every)
    if in_folds and count >= FEWEST:
        first = [feed for _, feed in islice(feeds, most)]
        return HeldOut(data, first, is_apart=False, places=range(len(first)), in_folds=True)
    if not period:
        return HeldOut(data, [feed for _, feed in feeds], is_apart=False, places=range(count))

    places = goal_judging(count, every, most)
    kept = [feed for _, feed in taken(feeds, places)]
    rest = without(data, graph, range(period - 1, count, period), count)
    return HeldOut(rest, kept, is_apart=True, places=places)


def without(data: CalibrationData, graph: gs.Graph, places: Collection[int], count: int) -> CalibrationData:
    """Return data without the samples at some places, of ``count``; they can be taken several times."""
    feeds = data.feeds(graph)

    def _others() -> Iterator[tuple[str, Feed]]:
        return (one for place, one in enumerate(feeds) if place not in places)

    others = Feeds(_others, model_inputs(graph), count=count - len(places))
    return replace(data, source=others, limit=None, images=None)
