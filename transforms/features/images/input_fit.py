"""Test whether pixels are scaled as in the model's training.

A model shows traces of its training images: its metadata may name the range of pixels, the first
BatchNormalization stores mean and variance of its input, and without one the bias of the first Conv has the
magnitude of its sums. Pixels with another scale, such as 0 to 255 instead of -1 to 1, do not fit these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.model.copy_graph import copy_graph
from transforms.runtime.session import OpenModel, RunOptions, open_session

_EPSILON = 1e-5
_LIVE = 1e-3
"""Share of the largest channel deviation below which a channel is dead and is ignored."""

_MISFIT, _FITS = 1.2, 0.5
"""Distance above which images do not fit, and the share of it below which alternatives fit better."""

_VERY_FAR = 4.0
"""Distance of samples that are wrong even if no alternative fits."""

_GATES: Mapping[str, float] = {"Sigmoid": 4.0, "Tanh": 4.0, "HardSigmoid": 4.0, "HardSwish": 4.0}
"""Input magnitude above which an activation after the first Conv is constant."""

_FAR = 2.0
"""Powers of two by which sums may be below the bias, or above the activation's limit."""


@dataclass(frozen=True)
class _Normalised:
    """The input of a BatchNormalization, with its running mean and deviation for each channel."""

    tensor: gs.Tensor
    cause: str
    mean: Float64Array
    deviation: Float64Array

    def distance(self, values: Float64Array) -> float:
        """Return the median distance of means, in deviations, plus that of deviations, in powers of two."""
        rows = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
        live = self.deviation > _LIVE * self.deviation.max()
        means = np.abs(rows.mean(1) - self.mean)[live] / self.deviation[live]
        ratios = np.maximum(rows.std(1)[live], _EPSILON * self.deviation[live]) / self.deviation[live]
        return float(np.median(means) + abs(np.log2(np.median(ratios))))


@dataclass(frozen=True)
class _Biased:
    """The output of the first Conv, with its bias, and the limit of the activation after it."""

    tensor: gs.Tensor
    cause: str
    bias: Float64Array
    most: float

    def distance(self, values: Float64Array) -> float:
        """Return the powers of two by which sums are too small for the bias, or exceed the activation."""
        sums = values - self.bias.reshape(1, -1, *[1] * (values.ndim - 2))
        share = _rms(self.bias) / max(_rms(sums), np.finfo(float).tiny)
        size = float(np.median(np.abs(values))) / self.most
        return max(float(np.log2(max(share, size, _EPSILON))) - _FAR, 0.0)


def _rms(values: Float64Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


Fit = _Normalised | _Biased
"""The tensor of a model that tells of its training, the cause of a misfit in words, and statistics."""


def find_fit(graph: gs.Graph, name: str) -> Fit | None:
    """Return what the first layers after an input tell of its training values, or None.

    Uses the first BatchNormalization if it comes before a second Conv, else the first Conv with a bias.
    """
    reached, constants = {name}, Constants(graph)
    conv: gs.Node | None = None
    for node in graph.nodes:
        if not any(tensor.name in reached for tensor in node.inputs):
            continue
        reached.update(tensor.name for tensor in node.outputs)
        if node.op == "BatchNormalization":
            return _normalised(node, constants)
        if node.op == "Conv" and conv is not None:
            break
        conv = node if node.op == "Conv" else conv
    return None if conv is None else _biased(conv, constants)


def _normalised(node: gs.Node, constants: Constants) -> _Normalised | None:
    mean, variance = (constants.values(tensor) for tensor in node.inputs[3:5])
    if mean is None or variance is None:
        return None
    deviation = np.sqrt(np.asarray(variance, np.float64) + float(node.attrs.get("epsilon", _EPSILON)))
    cause = f"their mean and variance are not those of {_called('the first BatchNormalization', node)}"
    return _Normalised(node.inputs[0], cause, np.asarray(mean, np.float64), deviation)


def _biased(conv: gs.Node, constants: Constants) -> _Biased | None:
    bias = constants.values(conv.inputs[2]) if len(conv.inputs) > 2 else None
    if bias is None or not np.any(bias):
        return None
    cause = f"the outputs of {_called('the first Conv', conv)} do not fit its bias or its activation"
    return _Biased(conv.outputs[0], cause, np.asarray(bias, np.float64), _most_taken(conv, constants))


def _called(words: str, node: gs.Node) -> str:
    return f"{words}, '{node.name}'," if node.name else words


def _most_taken(conv: gs.Node, constants: Constants) -> float:
    """Return the magnitude above which activations after a Conv are constant; infinite without one."""
    limits = [np.inf]
    for node in conv.outputs[0].outputs:
        if node.op in _GATES:
            limits.append(_GATES[node.op])
        elif node.op == "Clip":
            most = constants.scalar(node.inputs[2]) if len(node.inputs) > 2 else node.attrs.get("max")
            limits.append(most or np.inf)
    return max(min(limits), _EPSILON)


Feeds = Sequence[Feed]


class FirstLayers:
    """The part of a model up to the tensor that tells of its training images."""

    def __init__(self, graph: gs.Graph, fit: Fit, options: RunOptions | None = None) -> None:
        """Open a session on that part; the graph is not changed."""
        part = copy_graph(graph)
        part.outputs = [walk.tensors(part)[fit.tensor.name]]
        part.cleanup(remove_unused_graph_inputs=True)
        self._fit, self._inputs = fit, {tensor.name for tensor in part.inputs}
        self._model: OpenModel = open_session(part, options)

    def distance(self, feeds: Feeds) -> float:
        """Return the distance of samples from those of the training; infinite for non-finite numbers."""
        made = []
        for feed in feeds:
            (values,) = self._model.run({k: v for k, v in feed.items() if k in self._inputs}).values()
            made.append(np.asarray(values, np.float64))
        channels = made[0].shape[1]
        rows = np.concatenate([np.moveaxis(one, 1, 0).reshape(channels, -1) for one in made], 1)[None]
        found = self._fit.distance(rows) if np.isfinite(rows).all() else np.inf
        return float(found)


def better(layers: FirstLayers, given: Feeds, others: Mapping[str, Callable[[], Feeds]]) -> str | None:
    """Return which of ``others`` fits where the given samples do not; None if these fit, "" if none does.

    An alternative that fits no better proves nothing, unless the samples are very far from the training.
    """
    distance = layers.distance(given)
    if distance <= _MISFIT:
        return None
    found = {name: layers.distance(feeds()) for name, feeds in others.items()}
    best = min(found, key=found.__getitem__, default="")
    if best and found[best] < min(_FITS * distance, _MISFIT):
        return best
    return "" if distance > _VERY_FAR else None
