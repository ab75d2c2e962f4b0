"""Sensitivities estimated in one pass over the data, for all layers and formats together.

Moving a layer to other formats, which changes its operands by dx and dW, changes the outputs o of the model,
to first order, by J (W dx + dW x), J being the derivative of o by what the layer makes. For v of random signs
the expectation of (v^T J e)^2 is |J e|^2 (Hutchinson's estimator, doi 10.1080/03610919008812866), so that one
gradient g = J^T v of a sample serves all layers and formats:

    harm = mean of (<W^T g, dx> + <g x^T, dW>)^2 / mean of |o|^2

where W^T g is the gradient of the layer's input and g x^T that of its weight. Without a gradient, an
error is taken to reach the outputs as it is: its share of what the layer makes is its share of the outputs.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

import numpy as np
import onnx_graphsurgeon as gs

from transforms.convert_opset import convert_opset
from transforms.gradients import add_gradients
from transforms.graph import dtypes, walk
from transforms.graph.rewire import position
from transforms.mix_precision.candidates import Candidate, layers_of
from transforms.mix_precision.evaluation import EvaluationSet
from transforms.mix_precision.mixed_model import MixedModel
from transforms.mix_precision.sensitivity import LayerSensitivity, Sensitivity
from transforms.mix_precision.traced_layer import Operand, Sample, TracedLayer, constant_operand
from transforms.model.copy_graph import copy_graph
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.task_log import Progress
from transforms.runtime.session import RunOptions
from transforms.scheme.layer_rule import LayerRule
from transforms.search.output_metrics import is_float_array

Arrays = Mapping[str, np.ndarray]

_RUNS = 32
"""Random vectors in all: the standard error of a harm is then a quarter."""

_LEAST_KEPT = 1 << 28
"""Bytes of operands and gradients that are kept at a time; more where the largest weight takes more."""

_OPSET = 16
"""First opset in which all gradients can be written, those of overlapping pools among them."""


def trace_sensitivity(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    bench: EvaluationSet,
    *,
    progress: Progress | None = None,
) -> Sensitivity:
    """Return an estimate of what each of the formats does to the outputs where one layer alone has them.

    The error is that of moving the layer from its formats in the baseline; ``value`` is the SQNR in dB that
    it alone would leave. Biases are left out: they are as fine as the sums that they are added to. The random
    signs are the same at every call.
    """
    names = [one.name for one in candidates]
    everywhere = {choice.label: model.fake_quants(dict.fromkeys(names, choice)) for choice in choices}
    plain = model.fake_quants({})
    traced = _TracedModel(model.graph, names, _outputs(model.graph, bench), bench.run)
    places = [(name, i, node) for name, nodes in traced.nodes.items() for i, node in enumerate(nodes)]

    def _layer(place: tuple[str, int, gs.Node]) -> TracedLayer:
        name, i, node = place
        fake_quants = {label: found[name][i] for label, found in everywhere.items()}
        return TracedLayer(node, traced.operands[id(node)], plain[name][i], fake_quants)

    layers = [_layer(place) for place in places]
    room = max((_LEAST_KEPT, *(layer.weight_bytes for layer in layers)))
    power = _add_samples(traced, layers, bench, room, progress)
    harms = {name: dict.fromkeys(everywhere, 0.0) for name in names}
    for (name, _, _), layer in zip(places, layers, strict=True):
        for label, harm in layer.harms(power).items():
            harms[name][label] += harm
    damages = (
        LayerSensitivity(one.name, one.op, label, _decibels(harm), harm)
        for one in candidates
        for label, harm in harms[one.name].items()
    )
    return Sensitivity("trace", "sqnr", min(len(bench.feeds), _RUNS), tuple(damages))


def _add_samples(
    traced: _TracedModel,
    layers: Sequence[TracedLayer],
    bench: EvaluationSet,
    room: int,
    progress: Progress | None,
) -> float:
    """Add samples to all layers, each of which sums up by itself; return the power of the outputs.

    Several go together, as many as ``room`` bytes hold: a layer then rounds its weight once for all of them.
    So many bytes hold the weights, too, that layers load at once.
    """
    samples, draws = _runs(len(bench.feeds), len(layers))
    power, held, waiting = 0.0, 0, list[Sample]()
    at_once = room // max([1, *(layer.loaded_bytes for layer in layers)])
    with ThreadPoolExecutor(min(max(1, at_once), bench.run.threads or os.cpu_count() or 1)) as pool:
        for done, i in enumerate(samples, 1):
            feed, expected = bench.feeds[i], bench.expected[i]
            floats = filter(is_float_array, expected.values())
            power += draws * sum(float(np.square(array, dtype=np.float64).sum()) for array in floats)
            runs = [traced.run(feed, expected, np.random.default_rng([i, draw])) for draw in range(draws)]
            waiting.append((runs[0][0], [gradients for _, gradients in runs]))
            held += sum(array.nbytes for arrays, _ in runs for array in arrays.values())
            if progress:
                progress(done, len(samples), f"sample {i + 1}")
            if held + held / len(waiting) > room or done == len(samples):
                for _ in pool.map(partial(TracedLayer.add, samples=waiting), layers):
                    pass
                held, waiting = 0, []
    return power


def _runs(samples: int, layers: int) -> tuple[list[int], int]:
    """Return which samples are run, evenly taken, and how many draws there are for each.

    There are _RUNS, of few samples several each: as long as there are few layers, which lie close together in
    rank; of many layers, which make a run expensive, there are half as many and one of a sample.
    """
    runs = _RUNS if layers <= _RUNS else _RUNS // 2
    if samples >= runs:
        return [int(i) for i in np.linspace(0, samples - 1, runs)], 1
    return list(range(samples)), max(1, min(-(-runs // samples), runs // layers))


class _TracedModel:
    """The float model, which makes operands of its layers, and gradients, along with its outputs.

    ``nodes`` are those of each name, ``operands`` what each, by ``id``, reads.
    """

    def __init__(
        self, graph: gs.Graph, names: Sequence[str], outputs: Mapping[str, str], run: RunOptions
    ) -> None:
        graph = copy_graph(graph)
        convert_opset(graph, _OPSET)
        derive, found = walk.Names(graph), layers_of(graph)
        self.nodes = {name: found[name] for name in names}
        every = [node for nodes in self.nodes.values() for node in nodes]
        self.operands = {id(node): _own_edges(graph, node, derive) for node in every}
        ends = {tensor.name for tensor in graph.outputs}
        made = (tensor for node in graph.nodes for tensor in node.outputs)
        graph.outputs += [t for t in made if t.name in outputs.values() and t.name not in ends]
        self._seeds = {name: derive.derive(name, "seed") for name in outputs}
        read = {str(node.outputs[0].name): list(self.operands[id(node)].values()) for node in every}
        edges = {name: [one.edge for one in operands] for name, operands in read.items()}
        found_gradients = add_gradients(
            graph,
            {outputs[name]: seed for name, seed in self._seeds.items()},
            list(dict.fromkeys((*chain(*edges.values()), *edges))),
        )
        self._gradients, self._zero = found_gradients.names, found_gradients.zero
        shown = [name for name, own in edges.items() if {name, *own} & found_gradients.unknown.keys()]
        arrays = [one.name for one in chain(*read.values())] + shown
        run = dataclasses.replace(run, prepack=False)
        self._model = InstrumentedModel(graph, [*arrays, *self._gradients.values()], run)

    def run(self, feed: Arrays, expected: Arrays, random: np.random.Generator) -> tuple[Arrays, Arrays]:
        """Return what layers read by name, and gradients by it of outputs with random signs."""
        signs = {
            seed: random.choice(np.array([-1, 1], np.float32), expected[name].shape)
            for name, seed in self._seeds.items()
        }
        arrays = self._model.run({**feed, **signs})
        gradients = {name: arrays[gradient] for name, gradient in self._gradients.items()}
        return arrays, gradients | dict.fromkeys(self._zero, np.zeros(0, np.float32))


def _own_edges(graph: gs.Graph, node: gs.Node, names: walk.Names) -> dict[int, Operand]:
    """Let a layer alone read each of its operands, its weight aside, through a tensor of its own."""
    constant, operands = constant_operand(node), {}
    for index in (i for i in range(2) if i != constant):
        tensor = node.inputs[index]
        edge = gs.Variable(names.derive(tensor.name, "read"), tensor.dtype, tensor.shape)
        copy = gs.Node("Identity", names.derive(edge.name, "Identity"), inputs=[tensor], outputs=[edge])
        graph.nodes.insert(position(graph, node), copy)
        node.inputs[index] = edge
        name = edge.name if isinstance(tensor, gs.Constant) else tensor.name
        operands[index] = Operand(str(name), str(edge.name))
    return operands


def _outputs(graph: gs.Graph, bench: EvaluationSet) -> dict[str, str]:
    """Return, by the outputs that count, float32 tensors: themselves, or what a last Cast narrows to them."""
    made = {name: tensor for name, tensor in walk.tensors(graph).items() if isinstance(tensor, gs.Variable)}
    counted = (name for name in bench.expected[0] if name in made)
    found = {name: name for name in counted if dtypes.is_type(made[name], dtypes.FLOAT)}
    for tensor in graph.outputs:
        node = walk.producer(tensor)
        counts = tensor.name in bench.expected[0] and dtypes.is_type(tensor, dtypes.FLOAT16)
        if counts and node is not None and node.op == "Cast" and dtypes.is_type(node.inputs[0], dtypes.FLOAT):
            found[tensor.name] = node.inputs[0].name
    if not found:
        raise ValueError("no output that counts is float: sensitivities can be measured, not traced")
    return found


def _decibels(share: float) -> float:
    return math.inf if share == 0 else -10 * math.log10(share) if share < math.inf else -math.inf
