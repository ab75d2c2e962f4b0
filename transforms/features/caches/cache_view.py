"""A model with caches in few bits is fed the numbers of a float model, and compared by such numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.features.caches.coded_caches import CodedCache
from transforms.features.caches.two_steps import TwoSteps
from transforms.run.run_model import Run


@dataclass(frozen=True)
class CacheView:
    """How a model with such caches is run, as :class:`transforms.features.hooks.ModelView` says."""

    caches: Sequence[CodedCache]

    def fed(self, feed: Feed) -> Feed:
        """Return a feed with the codes of its caches; what is codes already stays."""
        return {**feed, **{one.past: one.encode(feed[one.past]) for one in self._in_float(feed)}}

    def in_float(self, run: Run) -> Run:
        """Return what runs the model on the feeds of a float model, and makes float caches."""

        def _run(feed: Feed) -> Feed:
            made = run(self.fed(feed))
            given = (one for one in self._in_float(feed) if one.present in made)
            return {**made, **{one.present: one.decode(made[one.present]) for one in given}}

        return _run

    def in_steps(self, graph: gs.Graph, run: Run, feeds: Sequence[Feed]) -> Callable[[Run], Run] | None:
        """Return how texts are read in two steps, the second with the caches of the first."""
        steps = TwoSteps.of(graph, self.caches)
        agrees = steps is not None and any(steps.agrees(run, feed) for feed in feeds[:1])
        return steps.through if steps and agrees else None

    def _in_float(self, feed: Feed) -> list[CodedCache]:
        """Return the caches that a feed has in float."""
        return [one for one in self.caches if feed[one.past].dtype.kind == "f"]
