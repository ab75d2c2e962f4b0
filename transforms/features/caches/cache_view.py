"""Run a model with caches in few bits on the feeds of its float model, and compare it by float caches."""

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
    """View of a model with caches in few bits, see :class:`transforms.features.hooks.ModelView`."""

    caches: Sequence[CodedCache]

    def fed(self, feed: Feed) -> Feed:
        """Return a feed whose float caches are encoded; caches that are codes already stay."""
        return {**feed, **{cache.past: cache.encode(feed[cache.past]) for cache in self._in_float(feed)}}

    def in_float(self, run: Run) -> Run:
        """Return a function that runs the model on feeds of the float model and returns float caches."""

        def _run(feed: Feed) -> Feed:
            outputs = run(self.fed(feed))
            returned = (cache for cache in self._in_float(feed) if cache.present in outputs)
            return {**outputs, **{cache.present: cache.decode(outputs[cache.present]) for cache in returned}}

        return _run

    def in_steps(self, graph: gs.Graph, run: Run, feeds: Sequence[Feed]) -> Callable[[Run], Run] | None:
        """Return a function that runs texts in two steps, the second with the caches of the first."""
        steps = TwoSteps.of(graph, self.caches)
        agrees = steps is not None and any(steps.agrees(run, feed) for feed in feeds[:1])
        return steps.through if steps and agrees else None

    def _in_float(self, feed: Feed) -> list[CodedCache]:
        """Return the caches that are float in a feed."""
        return [cache for cache in self.caches if feed[cache.past].dtype.kind == "f"]
