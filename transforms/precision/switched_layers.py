"""A quantized model in one session, in which each layer can be put back to float.

What a layer reads is rounded as in the quantized model where it is on, and is as it is where it is off: with
all layers on it is the quantized model, with none the float model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import onnx_graphsurgeon as gs

import ops
from ops.array_types import AnyArray, Feed, Float64Array
from ops.metrics import Sums, sums, total, without_row_means
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.embeddings import logits_of
from transforms.graph.number_shapes import judged_tensors
from transforms.judge.channel_groups import channel_groups, joined_outputs, names_of, split
from transforms.precision.chosen import Part
from transforms.precision.pair_nodes import PairedModels
from transforms.precision.readings import Reading, readings, shown_of
from transforms.precision.switched_model import switched_model
from transforms.run.kept_arrays import KeptArrays
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.search.group_search import joined

_LABEL = "quantized"
_END = "Identity"  # of a layer that is an output; others of that type round nothing


class SwitchedLayers:
    """Runs a quantized model with any of its layers in float.

    ``parts``: in the order of the model. ``outputs``: names of what is compared: the outputs of a floating
    type, and of one whose rows numbers choose what it is made of. ``joined``: how outputs were joined.
    ``unpaired``: nodes that compute without a counterpart in the float model.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        run: RunOptions | None = None,
        *,
        inner: bool = False,
    ) -> None:
        """Take the float model in the form that was quantized, and the quantized one; both are changed.

        ``inner``: what layers end in and read can be asked for, too; a session keeps such tensors to its end.
        Raises ValueError if no node of the quantized model computes otherwise than in the float model, and
        as :func:`transforms.run.run_model.open_model` does.
        """
        self._logits = logits_of(float_graph)
        self.joined = joined_outputs(float_graph)
        paired = PairedModels(float_graph, quantized_graph)
        self.unpaired: Sequence[str] = paired.unpaired
        layers = list(paired.base.layers)
        if not layers:
            raise ValueError("no layer of the quantized model is a rounded form of one of the float model")
        shown = {name: shown_of(paired.base.layers[name][0].outputs[0]) for name in layers}
        operators = {name: _operator(paired.base.layers[name][0]) for name in layers}
        dots = {name for name in layers if is_dot_product(paired.base.layers[name][0])}
        self.parts = [
            Part(names[0], operators[names[0]], tuple(names), shown[names[-1]])
            for layers in joined(_with_outputs(paired.base.layers), lambda names: names[0] in dots)
            for names in [list(chain(*layers))]
        ]
        self.readings = {name: self._readings(paired, name) for name in layers}
        graph = paired.base.graph
        judged = judged_tensors(graph)
        self.outputs = list(dict.fromkeys(n for names in judged.values() for n in names))
        switches = switched_model(paired.base, {_LABEL: paired.other}, [(name, _LABEL) for name in layers])
        self._switches = [[switches[name, _LABEL] for name in part.nodes] for part in self.parts]
        self._inputs = {tensor.name for tensor in graph.inputs}
        self._sources = {one.source for found in self.readings.values() for one in found if one.source}
        ends = (part.shown for part in self.parts)
        _show(graph, [*self.outputs, *((*ends, *sorted(self._sources - self._inputs)) if inner else ())])
        self._model = open_model(graph, replace(run or RunOptions(), simulate=True, spin=False))

    def more_bytes(self, part: Part, bits: int = 32) -> float:
        """Return how many bytes more the constants that a part reads in fewer bits take in so many."""
        found = (one for name in part.nodes for one in self.readings[name])
        known = (
            (one.values, ops.get_format(one.format).bits) for one in found if one.format and not one.source
        )
        return sum(values.size * max(bits - has, 0) / 8 for values, has in known if values is not None)

    def sources(self, parts: Iterable[Part], feed: Feed) -> Feed:
        """Return, for a feed, the float tensors that some parts read rounded, of a model with ``inner``."""
        readings = (one for part in parts for name in part.nodes for one in self.readings[name])
        names = {one.source for one in readings if one.source}
        fed = {name: feed[name] for name in names & self._inputs if name in feed}
        return {**fed, **self.run(feed, (), sorted(names - self._inputs))}

    def _readings(self, paired: PairedModels, name: str) -> list[Reading]:
        first, second = paired.base.layers[name][0], paired.other.layers[name][0]
        return list(readings(first, second, paired.floats))

    def run(self, feed: Feed, on: Collection[int], names: Sequence[str] | None = None) -> Feed:
        """Return tensors, the outputs if none are named, with the parts of these numbers quantized.

        Logits are without the mean of each row, as they are compared.
        """
        flags = {name: np.array(i in on) for i, switches in enumerate(self._switches) for name in switches}
        made = self._model.run({**feed, **flags}, self.outputs if names is None else names)
        return without_row_means(made, self._logits)


class Trials:
    """Errors of the outputs with some layers in float, on some samples; what was asked before is kept."""

    def __init__(self, model: SwitchedLayers, feeds: Sequence[Feed]) -> None:
        """Run the float model on the feeds."""
        self.model, self.feeds, kept = model, feeds, KeptArrays()
        self.expected = [kept.keep(model.run(feed, ())) for feed in feeds]
        self._known: dict[frozenset[int], list[dict[str, Sums]]] = {}
        self.groups = channel_groups(model.joined, self.expected)
        self.everything = frozenset(range(len(model.parts)))

    def on(self, parts: Iterable[int]) -> list[dict[str, Sums]]:
        """Return sums of each sample, by output, with these parts quantized and all others in float."""
        key = frozenset(parts)
        if key not in self._known:
            self.keep(key, (self.model.run(feed, key) for feed in self.feeds))
        return self._known[key]

    def keep(self, parts: Iterable[int], found: Iterable[Feed]) -> None:
        """Take what was made of the feeds with these parts quantized, one after the other."""
        self._known[frozenset(parts)] = list(map(self._compared, self.expected, found))  # one at a time

    def _compared(self, expected: Feed, made: Feed) -> dict[str, Sums]:
        whole = {name: _sums(expected[name], made[name]) for name in self.model.outputs}
        grouped = [{name: one[name] for name in self.groups} for one in (expected, made)]
        exact, found = (split(one, self.groups) for one in grouped)
        return whole | {name: _sums(exact[name], found[name]) for name in exact}

    def parts_of(self, outputs: Iterable[str]) -> list[str]:
        """Return the names under which outputs are compared that have groups of channels, each by itself."""
        return [part for name in outputs for part in names_of(name, self.groups)]

    def errors(self, parts: Iterable[int], name: str) -> Float64Array:
        """Return the squared errors of an output with these parts quantized, [samples]."""
        return np.array([one[name].error_energy for one in self.on(parts)], np.float64)

    def pooled(self, parts: Iterable[int], name: str) -> Sums:
        """Return the sums of an output over all samples with these parts quantized."""
        return total(one[name] for one in self.on(parts))


def _sums(expected: AnyArray, found: AnyArray) -> Sums:
    """Return the sums of one output; another shape counts as zeros."""
    return sums(expected, found if found.shape == expected.shape else np.zeros_like(expected))


def _with_outputs(layers: Mapping[str, Sequence[gs.Node]]) -> list[list[str]]:
    """Return the names of layers, those of outputs that are rounded with what makes them: in float, it
    rounds none of both.
    """
    groups = {name: [name] for name, (node, *_) in layers.items() if node.op != _END}
    makers = {id(node): name for name, nodes in layers.items() for node in nodes if node.op != _END}
    for name, (node, *_) in layers.items():
        if node.op == _END:
            maker = makers.get(id(walk.producer(node.inputs[0])), name)
            groups.setdefault(maker, []).append(name)
    return list(groups.values())


def _operator(node: gs.Node) -> str:
    return "output" if node.op == _END else str(node.op)


def _show(graph: gs.Graph, names: Iterable[str]) -> None:
    """Make tensors outputs of a graph, without shapes that may be wrong."""
    known, made = {tensor.name for tensor in graph.outputs}, walk.tensors(graph)
    for name in dict.fromkeys(names):
        if name not in known:
            tensor = made[name]
            if dtypes.element_type(tensor) is None:
                tensor.dtype = np.float32
            graph.outputs.append(tensor)
