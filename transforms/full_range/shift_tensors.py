"""Use the full range of int8 for tensors that are never negative: without a zero point, half of it is unused.

A Relu or Clip outputs numbers x in [0, t]. Rounded instead is x' = x - 128 s with s = t / 255, in steps half
as large. The bias of the layer before absorbs the shift, the saturation of int8 replaces the Relu, and the
biases of layers that read x add 128 s times the sum of their weights. That is exact: an integer in the steps
of an int32 bias, and the arithmetic of a zero point, without one in the model and with a node less.

The zeros with which a Conv pads must be shifted, too: by a Pad, if it may be added; and a Sub shifts an
input of the model, or a mean over positions, that is never negative.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.powers_of_two import are_powers
from transforms.full_range.integer_layers import (
    MIDDLE,
    IntegerLayer,
    integer_layer,
    is_at_zero,
    layer_that_reads,
    move_zero,
)
from transforms.full_range.pad_zeros import LEAST_OPSET, Padding
from transforms.full_range.recorded_shifts import record_shifts
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants, load
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import STANDARD_DOMAINS, Insertions, detach
from transforms.graph.value_limits import rectifier_limits

_STEPS, _HIGHEST = 255, 127
_FLOAT, _LEVELS, _ROUNDED = range(3)  # the contents of a tensor

_MOVING = frozenset({"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that commute with the shift of their input."""

_MEANS = frozenset({"GlobalAveragePool", "ReduceMean"})
"""Operators with small results, so that a Sub after them costs little."""

_TUNED_HEADROOM = 1.25
"""Factor on the range of a tensor when it gets twice the levels. A range of least squared error grows by
about an eighth, and a wider one costs little if weights are tuned to it, while new data exceed the measured
range."""


@dataclass
class _Tensor:
    """A tensor with numbers from 0 to ``scale * 127``, or ``bound`` if that is lower.

    ``nodes`` quantize and dequantize it; ``rectifier`` computes it from the output of ``maker``, both None
    for a tensor that a Sub shifts.
    """

    made: gs.Tensor
    nodes: Sequence[gs.Node]
    consumers: Sequence[IntegerLayer]
    scale: float
    rectifier: gs.Node | None = None
    maker: IntegerLayer | None = None
    bound: float = np.inf

    @property
    def name(self) -> str:
        """The name of the maker's output, or of the tensor that a Sub shifts."""
        return str((self.made if self.maker is None else self.maker.node.outputs[0]).name)

    @property
    def quantized(self) -> list[str]:
        """The names of the float tensors that are quantized: its own, and those moved from it."""
        return [str(node.inputs[0].name) for node in self.nodes if node.op == "QuantizeLinear"]


def shift_tensors(
    graph: gs.Graph,
    names: Container[str],
    *,
    padded: bool = False,
    tops: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Let int8 tensors use the full range, in place; return the shift of each, by the name in ``names``.

    These are outputs of a Relu, or of a Clip from 0, after a Conv or Gemm whose output is in ``names``, and
    inputs of the model and means with these names, which must never be negative. One scale quantizes them to
    int8, and only Gemm and Conv read them, also after a MaxPool or a change of shape; a Conv that pads only
    if it may get a Pad (``padded``). All have 8-bit weights, since the error of fewer bits is dominated by
    the weights, and int32 biases whose scale is that of weight times input. Others are not changed, nor
    scales that are powers of two. The range of an output extends to that in ``tops``, by the name of the
    quantized tensor, or is wider by a quarter, and at most to the bound of a Clip.

    Up to other steps, and roundings of the first bias and of inputs, the model computes the same. Its
    metadata record the shifts (:mod:`transforms.full_range.recorded_shifts`).
    """
    derived, constants, outputs = walk.Names(graph), Constants(graph), walk.outputs(graph)
    insertions = Insertions()
    padding = Padding(graph, derived, insertions) if padded and graph.opset >= LEAST_OPSET else None
    finder = _Finder(outputs, constants, padded=padding is not None)
    shifts: dict[str, float] = {}
    recorded: dict[str, float] = {}
    for tensor in _candidates(graph, names, finder):
        quantized = tensor.quantized
        shift = _shift(tensor, derived, tops or {})
        if shift is None:
            continue
        shifts[tensor.name] = shift
        recorded.update(dict.fromkeys((tensor.name, *quantized), shift))
        if tensor.maker is None:
            _subtract(graph, tensor, shift, derived, insertions)
        for consumer in tensor.consumers:
            if padding is not None and any(consumer.node.attrs.get("pads", ())):
                padding.add(consumer.node, tensor.nodes[0])
    insertions.place(graph)
    graph.nodes = [node for node in graph.nodes if node.outputs]  # the others were detached
    record_shifts(graph, recorded)
    return shifts


def count_added(graph: gs.Graph) -> int:
    """Return the number of nodes of the kinds that shifts may add."""
    return sum(node.op in ("Pad", "Sub") for node in graph.nodes)


def is_mean(node: gs.Node) -> bool:
    """Return whether a node computes means over positions, including an AveragePool over all of them."""
    if node.op == "AveragePool":
        shape = node.outputs[0].shape or ()
        return len(shape) > 2 and all(size == 1 for size in shape[2:])
    return node.op in _MEANS and node.domain in STANDARD_DOMAINS


def _candidates(graph: gs.Graph, names: Container[str], finder: _Finder) -> Iterator[_Tensor]:
    """Yield the tensors of these names that can be shifted, each in the graph's present state."""
    for tensor in graph.inputs:
        if tensor.name in names and (candidate := finder.find(tensor)) is not None:
            yield candidate
    for node in list(graph.nodes):
        if node.inputs and node.inputs[0].name in names:
            candidate = finder.rectified(node)
        elif is_mean(node) and node.outputs[0].name in names:
            candidate = finder.find(node.outputs[0])
        else:
            candidate = None
        if candidate is not None:
            yield candidate


class _Finder:
    """Finds what has to change together with a tensor."""

    def __init__(self, outputs: set[int], constants: Constants, *, padded: bool) -> None:
        self._outputs, self._constants, self._padded = outputs, constants, padded

    def rectified(self, node: gs.Node) -> _Tensor | None:
        """Return the output of a Relu or Clip, or None unless everything involved can change."""
        top = _top_of_rectifier(node, self._constants)
        before = walk.producer(node.inputs[0]) if top is not None else None
        maker = integer_layer(before) if before is not None else None
        if top is None or maker is None or id(node.inputs[0]) in self._outputs:
            return None
        if len(node.inputs[0].outputs) != 1:
            return None
        tensor = self.find(node.outputs[0])
        if tensor is None or top < tensor.scale:
            return None
        tensor.rectifier, tensor.maker, tensor.bound = node, maker, top
        return tensor

    def find(self, tensor: gs.Tensor) -> _Tensor | None:
        """Return the nodes that quantize and read a tensor, or None if it has other readers."""
        first = tensor.outputs[0] if tensor.outputs else None
        scale = _int8_scale(first) if first is not None else None
        if scale is None or id(tensor) in self._outputs:
            return None
        users = self._users(tensor, scale)
        consumers = (
            [layer_that_reads(reader, scale, padded=self._padded) for reader in users[1]] if users else [None]
        )
        fitting = [layer for layer in consumers if layer is not None]
        if users is None or len(fitting) < len(consumers):
            return None
        return _Tensor(tensor, users[0], fitting, scale)

    def _users(self, tensor: gs.Tensor, scale: float) -> tuple[list[gs.Node], list[gs.Node]] | None:
        """Return the roundings of a float tensor and its moved copies, and the layers that read them.

        None if it has other consumers, or another scale.
        """
        rounding, layers = list[gs.Node](), list[gs.Node]()
        waiting = [(tensor, _FLOAT)]
        for moved, kind in waiting:
            uses = walk.uses(moved)
            if not uses or id(moved) in self._outputs or any(index for _, index in uses):
                return None
            for node, _ in uses:
                if kind == _FLOAT and _int8_scale(node) == scale:
                    following = _LEVELS
                elif kind == _LEVELS and _is_back(node, scale):
                    following = _ROUNDED
                elif kind == _ROUNDED and node.op in _MOVING and node.domain in STANDARD_DOMAINS:
                    following = _FLOAT
                elif kind == _ROUNDED and node.op in ("Conv", "Gemm"):
                    layers.append(node)
                    continue
                else:
                    return None
                if len(node.outputs) > 1:
                    return None
                rounding += [] if following == _FLOAT else [node]
                waiting.append((node.outputs[0], following))
        return rounding, layers


def _top_of_rectifier(node: gs.Node, constants: Constants) -> float | None:
    """Return the upper bound of a Relu or of a Clip from 0, or None."""
    limits = rectifier_limits(node, constants)
    return limits[1] if limits is not None and limits[0] == 0 else None


def _is_back(node: gs.Node, scale: float) -> bool:
    return node.op == "DequantizeLinear" and is_at_zero(node) and _one_number(node.inputs[1]) == scale


def _int8_scale(node: gs.Node) -> float | None:
    """Return the scale of a QuantizeLinear to int8 with one scale and no zero point, or None."""
    if node.op != "QuantizeLinear" or len(node.inputs) < 3 or not is_at_zero(node):
        return None
    if load(node.inputs[2]).dtype != np.int8:
        return None
    return _one_number(node.inputs[1])


def _one_number(scale: gs.Tensor) -> float | None:
    """Return a stored float32 scale of one element, unless it is a power of two."""
    if not isinstance(scale, gs.Constant):
        return None
    values = load(scale)
    if values.size != 1 or values.dtype != np.float32 or are_powers(values):
        return None
    return float(values.reshape(()))


def _shift(tensor: _Tensor, names: walk.Names, tops: Mapping[str, float]) -> float | None:
    """Shift a tensor in place; return by how much, or None, with nothing changed, if a bias overflows."""
    scale = np.float32(min(tensor.bound, _top_of(tensor, tops)) / _STEPS)
    if not move_zero(tensor.maker, tensor.consumers, tensor.scale, float(scale)):
        return None
    old = tensor.nodes[0].inputs[1]
    stored = constant(names.derive(old.name, "full_range"), np.full(load(old).shape, scale, np.float32))
    for node in tensor.nodes:
        node.inputs[1] = stored
    if tensor.rectifier is not None:
        walk.redirect(tensor.rectifier.outputs[0], tensor.rectifier.inputs[0])
        detach(tensor.rectifier)
    return MIDDLE * float(scale)


def _top_of(tensor: _Tensor, tops: Mapping[str, float]) -> float:
    """Return the upper end of the range for a tensor; that of an input stays."""
    if not tensor.made.inputs:
        return tensor.scale * _HIGHEST
    found = [tops[name] for name in tensor.quantized if tops.get(name, 0.0) > 0]
    return max(found, default=tensor.scale * _HIGHEST * _TUNED_HEADROOM)


def _subtract(
    graph: gs.Graph, tensor: _Tensor, shift: float, names: walk.Names, insertions: Insertions
) -> None:
    """Shift an input or a mean in float, before it is quantized."""
    shifted = dtypes.variable(names.derive(tensor.name, "shifted"), dtypes.FLOAT, tensor.made)
    middle = constant(names.derive(tensor.name, "shift"), np.asarray(shift, np.float32))
    for node in tensor.nodes:
        if node.inputs[0] is tensor.made:
            node.inputs[0] = shifted
    node = gs.Node("Sub", names.derive(tensor.name, "shift_levels"), {}, [tensor.made, middle], [shifted])
    insertions.add(graph, walk.producer(tensor.made), [node])
