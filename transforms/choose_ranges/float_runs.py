"""What the float model makes of the samples that settings are compared on: each is run once, for all uses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.choose_ranges.output_views import FEW, views_of
from transforms.model.copy_graph import copy_graph
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.kept_arrays import KeptArrays
from transforms.run.run_each import run_each, with_bounded_memory, with_resting_threads
from transforms.run.tensor_watch import See
from transforms.runtime.session import RunOptions
from transforms.search.output_metrics import is_float_array


@dataclass(frozen=True)
class Sample:
    """A sample, the half that it belongs to, and what the float model makes of it."""

    half: int
    feed: Feed
    expected: Feed


class FloatRuns:
    """Runs a float model on the first samples, on as many as are asked for."""

    def __init__(self, graph: gs.Graph, feeds: Sequence[Feed], run: RunOptions | None) -> None:
        """Take samples, which calibration puts into two halves in turn; run none yet.

        The graph may be changed afterwards.
        """
        self._graph, self._run = copy_graph(graph), run
        self.feeds, self.options = feeds, _options(feeds, run)
        self._views = views_of(graph)
        self._kept, self._made = KeptArrays(), list[Feed]()
        self._model: InstrumentedModel[str] | None = None

    def watch(self, names: Collection[str], see: See, most: int) -> None:
        """Let tensors of the main graph go to a function while the first samples are run, ``most`` at most.

        No sample may have been run before.
        """
        for _ in islice(self.watched(names, see), most):
            pass

    def watched(self, names: Collection[str], see: See) -> Iterator[Feed]:
        """Yield what the model makes of as many of them as are asked for: the outputs with their views."""
        assert not self._made, "these were run without being looked at"
        model = self._open(names)
        for feed in self.feeds:
            self._made.append(self._kept.keep(model.run(feed, see=see)))
            yield self._made[-1]

    def continued(self, feeds: Sequence[Feed]) -> FloatRuns:
        """Return it with the samples that come after its own, the first ones, in what was read once more."""
        self.feeds = [*self.feeds, *feeds[len(self.feeds) :]]  # a source may vary what it yields
        self.options = _options(self.feeds, self._run)
        return self

    @property
    def is_begun(self) -> bool:
        """Whether a sample was run."""
        return bool(self._made)

    def is_of(self, graph: gs.Graph) -> bool:
        """Return whether another form of the graph shows the same tensors beside its outputs."""
        return views_of(graph) == self._views

    @property
    def views(self) -> list[str]:
        """The names of tensors that tell more than the outputs do (:mod:`output_views`)."""
        first = self._first()
        return [name for name, output in self._views.items() if not output or np.size(first[output]) < FEW]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs of a floating type."""
        ends = {tensor.name for tensor in self._graph.outputs}
        return [name for name in self._floats() if name in ends]

    @property
    def shown(self) -> list[str]:
        """The names of these outputs, and after them of their views."""
        outputs, views = self.outputs, set(self.views)
        return [*outputs, *(name for name in self._floats() if name in views and name not in outputs)]

    def samples(self, count: int) -> list[Sample]:
        """Return the first samples, run as far as they were not."""
        rest = self.feeds[len(self._made) : count]
        if rest:
            model = self._model or self._open()
            self._made += run_each(lambda feed: self._kept.keep(model.run(feed)), rest, self._run)
        self._model = None
        names = self.shown
        pairs = enumerate(zip(self.feeds[:count], self._made, strict=False))
        return [Sample(i % 2, feed, {name: made[name] for name in names}) for i, (feed, made) in pairs]

    def _floats(self) -> list[str]:
        return [name for name, array in self._first().items() if is_float_array(array)]

    def _first(self) -> Feed:
        if not self._made:
            self._model = self._open()
            self._made.append(self._kept.keep(self._model.run(self.feeds[0])))
        return self._made[0]

    def _open(self, watched: Collection[str] = ()) -> InstrumentedModel[str]:
        shown = dict.fromkeys((*(tensor.name for tensor in self._graph.outputs), *self._views))
        options = replace(self.options, blocked=not watched)  # what is seen of blocks is brought out of them
        return InstrumentedModel[str](self._graph, shown, options, watched=watched)


def _options(feeds: Sequence[Feed], run: RunOptions | None) -> RunOptions:
    """Return how models are run on samples."""
    resting = replace(with_resting_threads(run), simulate=True, prepack=False)
    return with_bounded_memory(resting, feeds)
