"""Biases that take back what rounding does on average to the outputs of layers of a quantized model.

Where numbers crowd within a step, rounding has a mean error: a wide range makes 0 of all that SiLU makes of
negative numbers. The quantized model is run with the outputs of its layers brought to the means of the float
model, channel by channel. What a layer lacks then is its own share, not that of layers before it, and its
bias takes it: an empirical bias correction (M. Nagel et al., arXiv 1906.04721) of all layers in
one run of each sample. A mean counts by how far it stands out from how much samples differ.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed, Float64Array
from transforms.all_codes.integer_layers import is_at_zero
from transforms.all_codes.recorded_shifts import shifts_within
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.measure_outputs import Score, drags, falls, gain
from transforms.choose_ranges.score_model import score_runs
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constants import load
from transforms.graph.lazy_values import constant
from transforms.graph.number_shapes import NumberShapes
from transforms.graph.rewire import Insertions
from transforms.judge.output_views import show
from transforms.model.copy_graph import copy_graph
from transforms.run.run_each import run_each
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions

log = logging.getLogger(__name__)

SAMPLES = 8
"""Samples: two halves of four, fewer say little of how much they differ."""

_EXPECTED, _SPREAD = 0.3, 0.8
"""dB that outputs of other models gain, and how much that differs."""

_LEAST = 0.6
"""dB that have to be expected: tuning gains less than that as well, and is judged on these samples, too."""
_AXES = 18  # opset from which the axes of ReduceMean are an input
_CHANNELS = 1  # the axis of channels of what a layer makes
_LARGEST = 2**31 - 1
_CLEAR = 1e6  # squared standard errors: beyond them, a mean is clear


def outputs_of_layers(graph: gs.Graph) -> dict[int, str]:
    """Return the names of the float32 tensors that nodes of a graph make, by the id of the node.

    Those are left out whose number of rows depends on numbers: their means are of other rows in other models.
    """
    made = ((node, str(node.outputs[0].name)) for node in graph.nodes if _makes_floats(node))
    uneven = NumberShapes(graph).names
    return {id(node): name for node, name in made if name not in uneven}


def _makes_floats(node: gs.Node) -> bool:
    return bool(node.outputs) and dtypes.is_type(node.outputs[0], dtypes.FLOAT)


def settle_biases(
    graph: gs.Graph,
    outputs: Mapping[int, str],
    floats: FloatRuns,
    run: RunOptions | None = None,
    *,
    judged: bool = True,
) -> int:
    """Correct int32 biases of layers of a quantized graph, in place; return how many.

    ``judged``: none unless a gain of its outputs is to be expected, on samples that gave the biases nothing
    and from other models. ``outputs``: as of :func:`outputs_of_layers` before it was quantized. ``floats``:
    runs of the float model as it was quantized, none yet, on eight samples.
    """
    layers = list(_layers(graph, outputs))
    if not layers:
        return 0
    shifts = shifts_within(graph)
    means: dict[str, list[AnyArray]] = {one.name: [] for one in layers}

    def _see(name: str, array: AnyArray) -> None:
        means[name].append(_mean(array) - np.float32(shifts.get(name, 0.0)))

    floats.watch(list(means), _see, SAMPLES)
    layers = [one for one in layers if means[one.name][0].size == load(one.numbers).size]
    if not layers or (judged and not floats.outputs):
        return 0
    of_samples = list(zip(*(means[one.name] for one in layers), strict=True))
    trial = _Trial(graph, layers, floats, of_samples, shifts, run)
    if judged and not trial.is_better():
        return 0
    return sum(_correct(one, share) for one, share in zip(layers, trial.shares(), strict=True))


@dataclass(frozen=True)
class _Layer:
    """A layer, its place among the nodes, what it makes in the float model, and int32 numbers of its bias.

    Those, and their steps, are its own constants.
    """

    place: int
    name: str
    numbers: gs.Constant
    steps: AnyArray

    @property
    def bias(self) -> AnyArray:
        """The bias as it is added."""
        return np.asarray(load(self.numbers) * self.steps, np.float32)


def _layers(graph: gs.Graph, outputs: Mapping[int, str]) -> Iterator[_Layer]:
    for place, node in enumerate(graph.nodes):
        bias = dot_products.bias(node) if dot_products.is_dot_product(node) else None
        back = None if bias is None else walk.producer(bias)
        if back is None or back.op != "DequantizeLinear" or not is_at_zero(back) or id(node) not in outputs:
            continue
        numbers, steps = back.inputs[:2]
        own = all(len(tensor.outputs) == 1 for tensor in (numbers, back.outputs[0]))
        stored = isinstance(numbers, gs.Constant) and isinstance(steps, gs.Constant)
        if own and stored and _is_row(load(numbers)) and node.attrs.get("beta", 1.0) == 1:
            yield _Layer(place, outputs[id(node)], numbers, load(steps))


def _is_row(numbers: AnyArray) -> bool:
    """Return whether int32 numbers of a bias are those of channels on axis 1, not the rows of a Gemm."""
    return numbers.dtype == np.int32 and numbers.size == math.prod(numbers.shape[-1:])


def _mean(array: AnyArray) -> AnyArray:
    """Return the mean of each channel, with as many axes; 0 of none."""
    if not array.size:
        return np.zeros(
            [size if axis == _CHANNELS else 1 for axis, size in enumerate(array.shape)], np.float32
        )
    return array.mean(_others(array.ndim), dtype=np.float64, keepdims=True).astype(np.float32)


def _others(rank: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if axis != _CHANNELS)


class _Trial:
    """A copy of a quantized graph whose layers can be brought to given means, and whose biases are fed."""

    def __init__(
        self,
        graph: gs.Graph,
        layers: Sequence[_Layer],
        floats: FloatRuns,
        means: Sequence[Sequence[AnyArray]],
        shifts: Mapping[str, float],
        run: RunOptions | None,
    ) -> None:
        """Open the copy. ``means``: what the float model makes, of samples, of layers; ``shifts``: of it."""
        self._layers, self._floats, self._means, self._run = layers, floats, means, run
        self._shifts, self._nothing = shifts, [np.zeros(())] * len(layers)
        self._samples = floats.samples(len(means))
        copy = copy_graph(graph)
        names, insertions = walk.Names(copy), Insertions()
        self._gate = gs.Variable(names.derive("means", "given"), np.float32, ())
        copy.inputs.append(self._gate)
        self._fed: list[tuple[str, str]] = []
        self._lacks: list[str] = []
        for layer, mean in zip(layers, means[0], strict=True):
            self._switch(copy, layer, mean, names, insertions)
        insertions.place(copy)
        missing = set(floats.inner).difference(show(copy, floats.inner))
        self._shown = [name for name in floats.shown if name not in missing]
        self._model = open_model(copy, floats.options)
        self._each = list(run_each(self._lack, range(len(means)), run))

    def _switch(
        self, copy: gs.Graph, layer: _Layer, mean: AnyArray, names: walk.Names, insertions: Insertions
    ) -> None:
        """Let what a layer makes be corrected by its mean, and its bias be fed."""
        node = copy.nodes[layer.place]
        made = node.outputs[0]

        def _new(suffix: str, like: gs.Tensor | None = None) -> gs.Variable:
            shape = list(mean.shape) if like is None else like.shape
            return gs.Variable(names.derive(made.name, suffix), np.float32, shape)

        given = _new("given")
        bias = gs.Variable(names.derive(made.name, "bias"), np.float32, layer.bias.shape)
        raw, found, lacks, taken = _new("raw", made), _new("mean"), _new("lacks"), _new("taken")
        node.outputs[0], node.inputs[2] = raw, bias
        axes, inputs = list(_others(mean.ndim)), [raw]
        attributes: dict[str, int | list[int]] = {"keepdims": 1}
        if copy.opset >= _AXES:
            inputs.append(constant(names.derive(made.name, "axes"), np.array(axes, np.int64)))
        else:
            attributes["axes"] = axes
        nodes = [
            gs.Node("ReduceMean", found.name, attributes, inputs, [found]),
            gs.Node("Sub", lacks.name, {}, [given, found], [lacks]),
            gs.Node("Mul", taken.name, {}, [lacks, self._gate], [taken]),
            gs.Node("Add", names.derive(made.name, "corrected"), {}, [raw, taken], [made]),
        ]
        insertions.add(copy, node, nodes)
        copy.inputs += [given, bias]
        copy.outputs.append(lacks)
        self._fed.append((given.name, bias.name))
        self._lacks.append(lacks.name)

    def is_better(self) -> bool:
        """Return whether a gain is to be expected where samples have biases from the other half."""
        if not any(share.any() for share in self.shares()):
            return False
        halves = [self.shares(1 - half) for half in range(2)]
        scores = self._score(halves), self._score([self._nothing] * 2)
        shown = gain(*scores)
        log.info("biases corrected: %.2f dB, %+.2f +- %.2f", scores[0].mean, shown.decibels, shown.error)
        if shown.is_loss or drags(*scores) or falls(*scores):
            return False
        return shown.shrunk(_EXPECTED, _SPREAD) > _LEAST

    def shares(self, half: int | None = None) -> list[Float64Array]:
        """Return what each bias gets by all samples, or those of a half."""
        chosen = self._each if half is None else self._each[half::2]
        return [_share(np.array([one[i] for one in chosen])) for i in range(len(self._layers))]

    def _lack(self, number: int) -> list[Float64Array]:
        """Return what layers lack on a sample."""
        feed = self._feed(number, self._nothing, gate=1.0)
        made = self._model.run(feed, self._lacks)
        return [made[name].reshape(-1).astype(np.float64) for name in self._lacks]

    def _score(self, halves: Sequence[Sequence[Float64Array]]) -> Score:
        """Return the errors where samples of each half have biases changed in their own way."""

        def _made(number: int) -> Feed:
            return self._model.run(self._feed(number, halves[number % 2], gate=0.0), self._shown)

        made = run_each(_made, range(len(self._samples)), self._run)
        return score_runs(made, self._floats, self._samples, self._shifts)

    def _feed(self, number: int, shares: Sequence[Float64Array], *, gate: float) -> Feed:
        feed = {**self._samples[number].feed, self._gate.name: np.asarray(gate, np.float32)}
        for layer, share, mean, names in zip(
            self._layers, shares, self._means[number], self._fed, strict=True
        ):
            bias = layer.bias
            changed = bias + share.reshape(bias.shape) if share.ndim else bias
            feed |= {names[0]: mean, names[1]: np.asarray(changed, np.float32)}
        return feed


def _share(lacks: Float64Array) -> Float64Array:
    """Return the part of a mean that counts, [channels], of what samples lack, [samples, channels].

    The estimate of James and Stein for a layer, and the same for each channel: 0 if samples differ as much as
    they would if nothing was there. A variance of few samples makes the square of t larger by ``few``.
    """
    count = len(lacks)
    mean, error, few = lacks.mean(0), lacks.var(0, ddof=1) / count, (count - 1) / (count - 3)
    with np.errstate(all="ignore"):
        clear = np.minimum(np.nan_to_num(np.square(mean) / error, nan=0.0, posinf=_CLEAR), _CLEAR)
        together = max(0.0, 1 - few * clear.size / clear.sum()) if clear.any() else 0.0
        found = mean * together * np.maximum(0.0, 1 - 1 / clear)
    return found if np.isfinite(found).all() else np.zeros_like(mean)


def _correct(layer: _Layer, share: Float64Array) -> bool:
    """Add to the numbers of a bias; return whether any changed, none if they do not fit."""
    numbers = load(layer.numbers)
    added = np.rint(share.reshape(numbers.shape) / layer.steps)
    changed = numbers.astype(np.float64) + added
    if not added.any() or np.abs(changed).max() > _LARGEST:
        return False
    layer.numbers.values = changed.astype(np.int32)
    return True
