"""Hold out the samples that a choice is judged on from those that it is made on."""

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
"""One of so many samples judges a gate: more than for decibels, since answers say less of a model."""


MOST_OF_GATES = 256
"""Most samples that judge a gate: a share of answers needs ten times as many samples as decibels do."""


@dataclass(frozen=True)
class HeldOut:
    """Data to quantize with, and feeds to judge on, with their ``places`` (indices) in the data.

    ``is_apart``: whether the data to quantize with exclude these feeds. ``in_folds``: whether each feed is
    judged on a model whose ranges exclude it.
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
    """Return the samples that judge a target, and the data without them.

    One of ``every`` samples judges, ``most`` in all; :func:`transforms.judge.sample_roles.goal_judging` says
    which. Of few samples, all judge and none is held out. ``in_folds``: the first ``most`` samples judge, and
    none is held out, since a model is made for each fold. Raises ValueError for data that can be read only
    once.
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
    judging = [feed for _, feed in taken(feeds, places)]
    rest = without(data, graph, range(period - 1, count, period), count)
    return HeldOut(rest, judging, is_apart=True, places=places)


def without(data: CalibrationData, graph: gs.Graph, places: Collection[int], count: int) -> CalibrationData:
    """Return the data without the samples at some places, out of ``count``; they can be read repeatedly."""
    feeds = data.feeds(graph)

    def _others() -> Iterator[tuple[str, Feed]]:
        return (sample for place, sample in enumerate(feeds) if place not in places)

    remaining = Feeds(_others, model_inputs(graph), count=count - len(places))
    return replace(data, source=remaining, limit=None, images=None)
