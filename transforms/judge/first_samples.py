"""Samples that are run again after calibration, even if their source can be read once only."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import islice

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.run.feeds import Feeds
from transforms.runtime.inputs import model_inputs


class FirstSamples:
    """Feeds of which the first ``most`` can be taken again; ``count`` is how many were taken."""

    def __init__(self, source: Feeds, graph: gs.Graph, most: int) -> None:
        """Take the feeds of a source for the inputs of a graph."""
        self._source, self._most = source, most
        self._first, self.count = list[tuple[str, Feed]](), 0
        length = operator.length_hint(source, 0) or None
        inputs = model_inputs(graph)
        self.feeds = Feeds(self._take, inputs, count=length, is_repeatable=source.is_repeatable)

    def again(self) -> list[Feed]:
        """Return the first feeds."""
        return [feed for _, feed in self.named()]

    def named(self) -> list[tuple[str, Feed]]:
        """Return the first feeds with their names."""
        return self._first or list(islice(self._source, self._most))

    def whole(self) -> Feeds | list[Feed] | None:
        """Return all feeds, to be taken again; None if some are gone."""
        if self._source.is_repeatable:
            return self._source
        return [feed for _, feed in self._first] if self.count == len(self._first) else None

    def _take(self) -> Iterator[tuple[str, Feed]]:
        self.count = 0
        for name, feed in self._source:
            self.count += 1
            if not self._source.is_repeatable and len(self._first) < self._most:
                self._first.append((name, feed))
            yield name, feed
