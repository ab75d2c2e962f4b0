"""Run a quantized model in one session in which each layer can be switched to float.

The inputs of a layer are rounded as in the quantized model if its switch is on, and not rounded if it is off:
with all switches on it is the quantized model, with none the float model.
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
_END = "Identity"  # operator of a layer that is a rounded output; no other Identity rounds anything


class SwitchedLayers:
    """Runs a quantized model with any of its layers in float.

    ``parts``: the layers, in the order of the model. ``outputs``: names of the tensors that are compared:
    outputs of a floating type; of an output whose rows depend on values, the tensors that it is made of.
    ``joined``: how outputs were joined. ``unpaired``: names of computing nodes without a counterpart in the
    float model.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        quantized_graph: gs.Graph,
        run: RunOptions | None = None,
        *,
        inner: bool = False,
    ) -> None:
        """Pair the float model, in the form that was quantized, with the quantized one; edits both.

        ``inner``: outputs and inputs of layers can be requested from :meth:`run`, too, which takes memory.
        Raises ValueError if no node of the quantized model differs from its counterpart, and as
        :func:`transforms.run.run_model.open_model` does.
        """
        self._logits = logits_of(float_graph)
        self.joined = joined_outputs(float_graph)
        paired = PairedModels(float_graph, quantized_graph)
        self.unpaired: Sequence[str] = paired.unpaired
        layers = list(paired.base.layers)
        if not layers:
            raise ValueError("no layer of the quantized model is a rounded form of one of the float model")
        # of many layers, those that follow a dot product are switched with it
        shown = {name: shown_of(paired.base.layers[name][0].outputs[0]) for name in layers}
        operators = {name: _operator(paired.base.layers[name][0]) for name in layers}
        dots = {name for name in layers if is_dot_product(paired.base.layers[name][0])}
        self.parts = [
            Part(names[0], operators[names[0]], tuple(names), shown[names[-1]])
            for layers in joined(_with_outputs(paired.base.layers), lambda names: names[0] in dots)
            for names in [list(chain(*layers))]
        ]
        self.readings = {name: self._readings(paired, name) for name in layers}
        # the outputs that are compared, before switches change the graph
        graph = paired.base.graph
        judged = judged_tensors(graph)
        self.outputs = list(dict.fromkeys(n for names in judged.values() for n in names))
        switches = switched_model(paired.base, {_LABEL: paired.other}, [(name, _LABEL) for name in layers])
        self._switches = [[switches[name, _LABEL] for name in part.nodes] for part in self.parts]
        self._inputs = {tensor.name for tensor in graph.inputs}
        self._sources = {
            reading.source for of_layer in self.readings.values() for reading in of_layer if reading.source
        }
        ends = (part.shown for part in self.parts)
        _show(graph, [*self.outputs, *((*ends, *sorted(self._sources - self._inputs)) if inner else ())])
        self._model = open_model(graph, replace(run or RunOptions(), simulate=True, spin=False))

    def more_bytes(self, part: Part, bits: int = 32) -> float:
        """Return the bytes that the constants of a layer take more in ``bits`` bits than in their format."""
        rounded = (reading for name in part.nodes for reading in self.readings[name])
        weights = (
            (reading.values, ops.get_format(reading.format).bits)
            for reading in rounded
            if reading.format and not reading.source
        )
        return sum(values.size * max(bits - has, 0) / 8 for values, has in weights if values is not None)

    def sources(self, parts: Iterable[Part], feed: Feed) -> Feed:
        """Return the float tensors that some layers read rounded, for a feed; requires ``inner``."""
        rounded = (reading for part in parts for name in part.nodes for reading in self.readings[name])
        names = {reading.source for reading in rounded if reading.source}
        inputs = {name: feed[name] for name in names & self._inputs if name in feed}
        return {**inputs, **self.run(feed, (), sorted(names - self._inputs))}

    def _readings(self, paired: PairedModels, name: str) -> list[Reading]:
        first, second = paired.base.layers[name][0], paired.other.layers[name][0]
        return list(readings(first, second, paired.floats))

    def run(self, feed: Feed, on: Collection[int], names: Sequence[str] | None = None) -> Feed:
        """Return tensors, by default the outputs, with the layers of the indices ``on`` quantized.

        The mean of each row is subtracted from logits, as they are compared.
        """
        flags = {name: np.array(i in on) for i, switches in enumerate(self._switches) for name in switches}
        tensors = self._model.run({**feed, **flags}, self.outputs if names is None else names)
        return without_row_means(tensors, self._logits)


class Trials:
    """Measures errors of the outputs with some layers in float, on some samples, and caches them."""

    def __init__(self, model: SwitchedLayers, feeds: Sequence[Feed]) -> None:
        """Run the float model on the feeds."""
        self.model, self.feeds, arrays = model, feeds, KeptArrays()
        self.expected = [arrays.keep(model.run(feed, ())) for feed in feeds]
        self._measured: dict[frozenset[int], list[dict[str, Sums]]] = {}
        self.groups = channel_groups(model.joined, self.expected)
        self.everything = frozenset(range(len(model.parts)))

    def on(self, indices: Iterable[int]) -> list[dict[str, Sums]]:
        """Return the sums of each sample, by output, with these layers quantized and all others in float."""
        key = frozenset(indices)
        if key not in self._measured:
            self.keep(key, (self.model.run(feed, key) for feed in self.feeds))
        return self._measured[key]

    def keep(self, parts: Iterable[int], outputs: Iterable[Feed]) -> None:
        """Cache the sums of outputs for the feeds, in order, with these layers quantized."""
        self._measured[frozenset(parts)] = list(map(self._compared, self.expected, outputs))  # one at a time

    def _compared(self, expected: Feed, outputs: Feed) -> dict[str, Sums]:
        sums_by_name = {name: _sums(expected[name], outputs[name]) for name in self.model.outputs}
        grouped = [{name: tensors[name] for name in self.groups} for tensors in (expected, outputs)]
        exact, quantized = (split(tensors, self.groups) for tensors in grouped)
        return sums_by_name | {name: _sums(exact[name], quantized[name]) for name in exact}

    def parts_of(self, outputs: Iterable[str]) -> list[str]:
        """Return the names under which outputs are compared, one for each group of channels."""
        return [part for name in outputs for part in names_of(name, self.groups)]

    def errors(self, indices: Iterable[int], name: str) -> Float64Array:
        """Return the squared errors of an output with these layers quantized, [samples]."""
        return np.array([sums_by_name[name].error_energy for sums_by_name in self.on(indices)], np.float64)

    def pooled(self, indices: Iterable[int], name: str) -> Sums:
        """Return the sums of an output over all samples with these layers quantized."""
        return total(sums_by_name[name] for sums_by_name in self.on(indices))


def _sums(expected: AnyArray, outputs: AnyArray) -> Sums:
    """Return the sums of one output; an output of another shape counts as zeros."""
    return sums(expected, outputs if outputs.shape == expected.shape else np.zeros_like(expected))


def _with_outputs(layers: Mapping[str, Sequence[gs.Node]]) -> list[list[str]]:
    """Return groups of layers by name: a rounded output is in the group of the layer that produces it."""
    groups = {name: [name] for name, (node, *_) in layers.items() if node.op != _END}
    producers = {id(node): name for name, nodes in layers.items() for node in nodes if node.op != _END}
    for name, (node, *_) in layers.items():
        if node.op == _END:
            producer = producers.get(id(walk.producer(node.inputs[0])), name)
            groups.setdefault(producer, []).append(name)
    return list(groups.values())


def _operator(node: gs.Node) -> str:
    return "output" if node.op == _END else str(node.op)


def _show(graph: gs.Graph, names: Iterable[str]) -> None:
    """Make tensors outputs of a graph, without shapes that may be wrong."""
    outputs, tensors = {tensor.name for tensor in graph.outputs}, walk.tensors(graph)
    for name in dict.fromkeys(names):
        if name not in outputs:
            tensor = tensors[name]
            if dtypes.element_type(tensor) is None:
                tensor.dtype = np.float32
            graph.outputs.append(tensor)
