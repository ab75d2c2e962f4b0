"""Scales of activations once the weights are tuned: a few factors for each, by their effect on outputs.

Ranges were chosen for weights that were rounded to nearest. With tuned weights clipping may cost more than
coarser steps do. Scales become less only before functions that are level there, as a Sigmoid is: that less
range is enough for some samples says little of others, and one that is cut off costs more than finer steps
bring (a classifier of sequences lost 6 dB so). Zero points stay, and tensors that share a scale keep it in
common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array
from ops.powers_of_two import are_powers
from transforms.finetune.output_error import Errors
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.value_limits import LEVEL
from transforms.model.copy_graph import copy_graph
from transforms.plan.moves import MOVES

_WIDER, _NARROWER = (1.15, 1.3), (0.87,)
"""Factors that are tried one after the other, as long as each is better."""

_LEAST_GAIN = 0.98
"""Share of the error that a factor may leave: less of a gain on a few samples is chance."""

_MOST = 48
"""Scales: of more the trials would take longer than tuning."""

Opened = Callable[[Feed], Errors]


@dataclass(frozen=True)
class _Bias:
    """The int32 numbers of a bias, their scale, and that of the weight, the other factor in it."""

    numbers: gs.Constant
    step: gs.Constant
    weight: gs.Constant


@dataclass(frozen=True)
class _Scale:
    """A scale, the constants that hold it, and int32 biases in whose scales it is a factor.

    ``is_level``: whether only functions read it that are level beyond some number.
    """

    value: Float32Array
    holders: Sequence[gs.Constant]
    biases: Sequence[_Bias]
    is_level: bool


def tune_scales(graph: gs.Graph, opened: Callable[[gs.Graph], Opened]) -> tuple[gs.Graph, int]:
    """Return a copy of a quantized model with other scales of activations, and how many changed.

    ``opened`` returns the errors of a model on some samples for what is fed beside them.
    """
    trial, names = copy_graph(graph), walk.Names(graph)
    scales = _scales(trial)
    if not 0 < len(scales) <= _MOST:
        return graph, 0
    inputs = [_feed(trial, one, names) for one in scales]
    values = {name: one.value for name, one in zip(inputs, scales, strict=True)}
    errors = opened(trial)
    least, factors = errors(values).relative, list[float]()
    for one, name in zip(scales, inputs, strict=True):

        def _error(factor: float, name: str = name) -> float:
            return errors({**values, name: _times(values[name], factor)}).relative

        factor, least = _best_factor(_error, least, (_WIDER, _NARROWER) if one.is_level else (_WIDER,))
        values[name] = _times(values[name], factor)
        factors.append(factor)
    result = copy_graph(graph)
    for one, factor in zip(_scales(result), factors, strict=True):
        if factor != 1:
            _multiply(one, factor)
    return result, sum(factor != 1 for factor in factors)


def _best_factor(
    error: Callable[[float], float], least: float, ways: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """Return a factor on the first of the ways that is better, and its error; 1 and ``least`` if none is."""
    for way in ways:
        best = 1.0
        for factor in way:
            found = error(factor)
            if found >= _LEAST_GAIN * least:
                break
            best, least = factor, found
        if best != 1:
            return best, least
    return 1.0, least


def _times(scale: Float32Array, factor: float) -> Float32Array:
    return np.asarray(scale * np.float32(factor), np.float32)


def _scales(graph: gs.Graph) -> list[_Scale]:
    """Return the scales of computed tensors in execution order; none if all are powers of two."""
    groups: dict[tuple[bytes, bytes], list[gs.Node]] = {}
    for node in graph.nodes:
        if node.op == "QuantizeLinear" and not isinstance(node.inputs[0], gs.Constant):
            key = _key(node)
            if key is None:
                return []
            groups.setdefault(key, []).append(node)
    found = [_scale(nodes, graph) for nodes in groups.values()]
    known = [one for one in found if one is not None]
    return [] if known and all(are_powers(one.value) for one in known) else known


def _key(node: gs.Node) -> tuple[bytes, bytes] | None:
    """Return scale and zero point of a tensor as bytes, None unless they are stored."""
    if not all(isinstance(tensor, gs.Constant) for tensor in node.inputs[1:]):
        return None
    parts = [np.ascontiguousarray(load(tensor)).tobytes() for tensor in node.inputs[1:]]
    return parts[0], b"".join(parts[1:])


def _scale(nodes: Sequence[gs.Node], graph: gs.Graph) -> _Scale | None:
    """Return the scale of nodes, or None if not all that reads it can follow it."""
    pairs, readers = list(nodes), list[gs.Node]()
    biases: list[_Bias] = []
    for node in nodes:
        for back, _ in walk.uses(node.outputs[0]):
            if back.op != "DequantizeLinear":
                return None
            pairs.append(back)
            for reader, index in walk.uses(back.outputs[0]):
                readers.append(reader)
                bias = _int32_bias(reader) if index == 0 else None
                if bias is not None:
                    own = _bias_of(reader, bias)
                    if own is None:
                        return None
                    biases.append(own)
    holders = list({id(node.inputs[1]): node.inputs[1] for node in pairs}.values())
    inside = {id(node) for node in pairs}
    if any(id(reader) not in inside for holder in holders for reader in holder.outputs):
        return None
    if any(len(walk.uses(tensor)) > 1 for one in biases for tensor in (one.numbers, one.step)):
        return None
    value = np.asarray(load(holders[0]))
    if value.size != 1 or value.dtype != np.float32:
        return None
    is_end = any(walk.is_output(node.outputs[0], graph) for node in pairs)
    is_level = not is_end and all(_is_level(node, inside) for node in readers)
    return _Scale(value, holders, biases, is_level)


def _is_level(node: gs.Node, inside: Set[int]) -> bool:
    """Return whether a reader is level beyond some number, or moves numbers to nodes ``inside``, by id."""
    users = [user for tensor in node.outputs for user, _ in walk.uses(tensor)]
    is_moved = node.op in MOVES and bool(users) and all(id(user) in inside for user in users)
    return node.op in LEVEL or is_moved


def _int32_bias(node: gs.Node) -> gs.Node | None:
    """Return the node that makes a stored int32 bias float, if a dot product reads such a one."""
    made = walk.producer(node.inputs[2]) if len(node.inputs) > 2 else None
    if made is None or made.op != "DequantizeLinear" or not isinstance(made.inputs[0], gs.Constant):
        return None
    return made if load(made.inputs[0]).dtype == np.int32 else None


def _bias_of(node: gs.Node, made: gs.Node) -> _Bias | None:
    """Return the bias of a dot product, None unless its scale is that of weight times input."""
    back = walk.producer(node.inputs[1])
    source = walk.producer(node.inputs[0])
    if back is None or source is None or back.op != "DequantizeLinear":
        return None
    step, weight = made.inputs[1], back.inputs[1]
    if not (isinstance(step, gs.Constant) and isinstance(weight, gs.Constant)):
        return None
    product = np.asarray(load(source.inputs[1]) * load(weight), np.float32)
    if product.shape != tuple(step.shape) or not np.allclose(product, load(step), rtol=1e-5, atol=0):
        return None
    return _Bias(made.inputs[0], step, weight)


def _feed(graph: gs.Graph, scale: _Scale, names: walk.Names) -> str:
    """Let nodes read a scale from an input of the graph; biases stay as they are."""
    first = scale.holders[0]
    fed = gs.Variable(names.derive(first.name, "fed"), np.float32, tuple(scale.value.shape))
    graph.inputs.append(fed)
    for holder in scale.holders:
        for node in list(holder.outputs):
            node.inputs[1] = fed
    return str(fed.name)


def _multiply(scale: _Scale, factor: float) -> None:
    for holder in scale.holders:
        holder.values = _times(load(holder), factor)
    for one in scale.biases:
        old, step = load(one.step), np.asarray(load(scale.holders[0]) * load(one.weight), np.float32)
        one.numbers.values = np.rint(load(one.numbers) * (old / step.astype(np.float64))).astype(np.int32)
        one.step.values = step
