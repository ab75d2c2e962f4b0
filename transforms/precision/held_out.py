"""Samples that a choice is judged on, kept apart from those that it is made on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph.some_names import counted
from transforms.run.feeds import Feeds
from transforms.runtime.inputs import model_inputs

EVERY = 4
"""Of so many samples, the last is held out."""

FEWEST = 4
"""Samples below which none is held out."""

MOST = 32
"""Samples that are held out, at most; the others of their kind are not used."""


@dataclass(frozen=True)
class HeldOut:
    """Data to quantize with, and feeds to judge on; ``is_apart``: whether they are others."""

    data: CalibrationData
    feeds: Sequence[Feed]
    is_apart: bool

    @property
    def where(self) -> str:
        """The samples that judge, in words."""
        if self.is_apart:
            return counted(len(self.feeds), "held-out sample")
        return f"{counted(len(self.feeds), 'sample')}, too few to hold any out"


def hold_out(data: CalibrationData, graph: gs.Graph) -> HeldOut:
    """Return the data without every fourth sample, and those; of fewer than four, all are both.

    Raises ValueError for data that can be read once only.
    """
    feeds = data.feeds(graph)
    if not feeds.is_repeatable:
        raise ValueError("samples from a reader or a generator cannot be read twice: give a folder or a list")
    count = sum(1 for _ in feeds)
    if count < FEWEST:
        return HeldOut(data, [feed for _, feed in feeds], is_apart=False)

    def _rest() -> Iterator[tuple[str, Feed]]:
        return (one for i, one in enumerate(feeds) if i % EVERY != EVERY - 1)

    places = range(EVERY - 1, count, EVERY)[:MOST]
    kept = [feed for i, (_, feed) in enumerate(feeds) if i in places]
    rest = Feeds(_rest, model_inputs(graph), count=count - count // EVERY)
    return HeldOut(replace(data, source=rest, limit=None, images=None), kept, is_apart=True)
