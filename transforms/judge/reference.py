"""Outputs of the float model on samples, each run once for all uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibration import half_of
from transforms.graph.number_shapes import NumberShapes, judged_tensors
from transforms.graph.output_view import output_view
from transforms.judge.channel_groups import ChannelGroups, Groups, channel_groups, joined_outputs, names_of
from transforms.judge.constants import FEW_NUMBERS, FEW_SAMPLES
from transforms.judge.output_views import show, views_of
from transforms.judge.softmax_outputs import softmax_outputs
from transforms.model.copy_graph import copy_graph
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.kept_arrays import KeptArrays
from transforms.run.run_each import run_each, with_bounded_memory, with_resting_threads
from transforms.run.tensor_watch import See
from transforms.runtime.session import RunOptions
from transforms.search.output_metrics import is_float_array

KnownNames = Callable[[], Collection[str]]
"""Returns the names of the tensors that all compared models have; called only if needed."""

_UNPACKED = 8
"""Most samples for which weights are not packed for the kernels, which takes as long as it saves."""


@dataclass(frozen=True)
class Sample:
    """A sample, its fold, and the outputs of the float model."""

    fold: int
    feed: Feed
    expected: Feed


class Reference:
    """Runs a float model on as many samples as are requested, and keeps the outputs.

    ``view``: how outputs are compared. ``logits``: names of outputs compared as probabilities of tokens.
    ``judged``: by output, the tensors that are compared: itself, or the tensors that it is made of if its
    number of rows depends on values. ``lengths``: outputs whose length is a computed number, not a count of
    found rows.
    """

    def __init__(
        self,
        graph: gs.Graph,
        feeds: Sequence[Feed],
        run: RunOptions | None,
        *,
        known: KnownNames | None = None,
        stays: bool = False,
    ) -> None:
        """Take samples, which alternate between two folds, without running any.

        ``stays``: the caller does not change the graph afterwards, so that no copy is made.
        """
        self._graph, self._run = graph if stays else copy_graph(graph), run
        self.known = known
        self.feeds, self.options = feeds, _options(feeds, run)
        self.judged, self._views, self.lengths = _compared(graph, known)
        self.view = output_view(graph)
        self.logits = self.view.logits
        self._joined = joined_outputs(self._graph)
        self._groups: dict[str, ChannelGroups] | None = None
        self._arrays, self._outputs = KeptArrays(), dict[int, Feed]()
        self._model: InstrumentedModel[str] | None = None

    def watch(self, names: Collection[str], see: See, most: int) -> None:
        """Call ``see`` with tensors of the main graph while running the first samples, ``most`` at most.

        Samples that were run before are run again.
        """
        for _ in islice(self.watched(names, see), most):
            pass

    def watched(self, names: Collection[str], see: See) -> Iterator[Feed]:
        """Yield outputs and views of each feed, one run for each item; ``see`` gets the tensors ``names``."""
        model = self._open(names)
        for place, feed in enumerate(self.feeds):
            outputs = self._arrays.keep(model.run(feed, see=see))
            self._outputs.setdefault(place, outputs)
            yield outputs

    def is_of(self, graph: gs.Graph) -> bool:
        """Return whether a rewritten graph has the same compared tensors and views."""
        return _compared(graph, self.known) == (self.judged, self._views, self.lengths)

    def in_form(self, graph: gs.Graph) -> Reference:
        """Return the reference of a rewritten model with the same outputs, and other inner tensors."""
        reference = copy(self)
        reference._graph, reference._model = copy_graph(graph), None
        return reference

    @property
    def views(self) -> list[str]:
        """The names of tensors that are compared in addition to the outputs (:mod:`output_views`)."""
        first = self._first()
        return [
            name for name, output in self._views.items() if not output or np.size(first[output]) < FEW_NUMBERS
        ]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs of a floating type, without caches.

        An output whose number of rows depends on values is replaced by the tensors that it is made of. Of a
        model with logits of tokens, only logits count: its other outputs are caches.
        """
        return self.outputs_of(self.judged)

    def outputs_of(self, judged: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the names of the compared tensors of some outputs, as :attr:`outputs`."""
        names = {*chain(*judged.values())}
        return self.view.counted(name for name in self._floats() if name in names)

    def judged_by(self, index: int) -> dict[str, list[str]]:
        """Return the compared tensors of one output, of all for -1; ValueError if out of range."""
        if index >= len(self.judged):
            count = len(self.judged)
            raise ValueError(f"output {index} is not there, the model has {count}, the first is 0")
        return self.judged if index < 0 else dict([list(self.judged.items())[index]])

    @property
    def groups(self) -> Groups:
        """The groups of channels of outputs with several, measured on the first samples."""
        if self._groups is None:
            outputs = self.made([*self._joined], FEW_SAMPLES) if self._joined else []
            self._groups = channel_groups(self._joined, outputs)
        return self._groups

    @property
    def columns(self) -> list[str]:
        """The names of outputs in the order of errors: each repeated for its groups of channels."""
        return [name for name in self.outputs for _ in names_of(name, self.groups)]

    @property
    def unsaturated(self) -> list[int]:
        """The places of the outputs in ``shown``, of Softmax inputs for outputs that end in a Softmax."""
        names = [name for name in self.shown for _ in names_of(name, self.groups)]
        before = {name: str(tensor.name) for name, tensor in softmax_outputs(self._graph).items()}
        views = {name: place for place, name in enumerate(names)}
        return [views.get(before.get(name, ""), place) for place, name in enumerate(self.columns)]

    def tokens(self, outputs: Sequence[str]) -> list[int]:
        """Return the places of logits among some outputs: their errors are in nats, not relative."""
        return [place for place, name in enumerate(outputs) if name in self.logits]

    @property
    def shown(self) -> list[str]:
        """The names of the outputs, and after them of their views."""
        outputs, views = self.outputs, set(self.views)
        return [*outputs, *(name for name in self._floats() if name in views and name not in outputs)]

    def show(self, graph: gs.Graph) -> None:
        """Make all compared tensors outputs of a rewritten or quantized model, in place."""
        ends = {tensor.name for tensor in self._graph.outputs}
        inner = [name for name in dict.fromkeys((*self.outputs, *self.views)) if name not in ends]
        show(graph, inner)

    def samples(self, count: int) -> list[Sample]:
        """Return the first samples with float outputs; run those that were not run yet."""
        rest = [place for place in range(len(self.feeds[:count])) if place not in self._outputs]
        if rest:
            model = self._model or self._open()
            feeds = [self.feeds[place] for place in rest]
            runs = run_each(lambda feed: self._arrays.keep(model.run(feed)), feeds, self._run)
            self._outputs.update(zip(rest, runs, strict=True))
        self._model = None
        names, pairs = self.shown, enumerate(self.feeds[:count])
        return [
            Sample(half_of(i), feed, {name: self._outputs[i][name] for name in names}) for i, feed in pairs
        ]

    def made(self, names: Collection[str], most: int | None = None) -> list[Feed]:
        """Return the outputs of these names for each sample, unchanged, without sequences.

        ``most``: number of samples, the first ones, instead of all.
        """
        count = len(self.samples(len(self.feeds) if most is None else most))
        arrays = [name for name in names if isinstance(self._outputs[0][name], np.ndarray)]
        return [{name: self._outputs[place][name] for name in arrays} for place in range(count)]

    def run(self, feed: Feed) -> Feed:
        """Return the outputs for another feed; the model stays open until the samples are run."""
        self._model = self._model or self._open()
        outputs = self._model.run(feed)
        return {name: outputs[name] for name in (str(tensor.name) for tensor in self._graph.outputs)}

    def _floats(self) -> list[str]:
        return [name for name, array in self._first().items() if is_float_array(array)]

    def _first(self) -> Feed:
        if not self._outputs:
            self._model = self._open()
            self._outputs[0] = self._arrays.keep(self._model.run(self.feeds[0]))
        return self._outputs[0]

    def _open(self, watched: Collection[str] = ()) -> InstrumentedModel[str]:
        ends = (tensor.name for tensor in self._graph.outputs)
        shown = dict.fromkeys((*ends, *chain(*self.judged.values()), *self._views))
        options = replace(self.options, blocked=not watched)  # watched tensors are not in a blocked layout
        return InstrumentedModel[str](self._graph, shown, options, watched=watched)


def _compared(
    graph: gs.Graph, known: KnownNames | None = None
) -> tuple[dict[str, list[str]], dict[str, str], list[str]]:
    """Return the compared tensors of each output, the views, and the outputs of computed length."""
    shapes = NumberShapes(graph)
    judged = judged_tensors(graph, shapes=shapes)
    if known is not None and any(names != [name] for name, names in judged.items()):
        judged = judged_tensors(graph, known(), shapes)
    views = {name: output for name, output in views_of(graph).items() if name not in shapes.names}
    lengths = [tensor for tensor in graph.outputs if shapes.is_shaped(tensor) and not shapes.is_found(tensor)]
    return judged, views, [str(tensor.name) for tensor in lengths]


def _options(feeds: Sequence[Feed], run: RunOptions | None) -> RunOptions:
    """Return the options of sessions on samples; some kernels give other results with packed weights."""
    resting = with_resting_threads(run)
    resting = replace(resting, prepack=not resting.simulate or len(feeds) > _UNPACKED)
    return with_bounded_memory(resting, feeds)
