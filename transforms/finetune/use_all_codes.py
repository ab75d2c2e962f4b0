"""All codes of int8 for tensors that are never negative: without a zero point, half of them are not used.

A Relu or Clip makes numbers x in [0, t]. Rounded instead is x' = x - 128 s with s = t / 255, in steps half as
large. The bias of the layer in front takes the shift, the saturation of int8 does what the Relu did, and the
layers that read x add 128 s times the sum of their weights by their biases. That is exact: an integer in
the steps of an int32 bias, and the arithmetic of a zero point, with none in the model and a node less. A Conv
that pads has no such bias, for its zeros would have to be shifted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.powers_of_two import are_powers
from transforms.graph import walk
from transforms.graph.constants import Constants, load
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import STANDARD_DOMAINS, detach

_CODES, _MIDDLE, _HIGHEST = 255, 128, 127
_LARGEST = 2**31 - 1
_ROOM = 1.01  # times a bias: rounding the weights anew changes what is added to it
_ALIKE = 1e-5  # relative difference of scales that rounding to float32 explains

_MOVING = frozenset({"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that commute with the shift of their input."""


@dataclass(frozen=True)
class _Layer:
    """A Conv or Gemm, the int32 numbers of its bias, N in the last axis, and their steps: its own constants.

    ``weight`` makes the integers of its weight float, with a scale for each output if they are its own, too,
    which then can grow.
    """

    node: gs.Node
    numbers: gs.Constant
    steps: gs.Constant
    weight: gs.Node
    may_grow: bool

    @property
    def integers(self) -> NDArray[np.int64]:
        """The weight as integers, outputs first: [N, K]."""
        found = np.asarray(load(self.weight.inputs[0])).astype(np.int64)
        return (found if _is_first(self.node) else found.T).reshape(load(self.numbers).size, -1)


@dataclass
class _Tensor:
    """A tensor of numbers from 0 to ``scale * 127``, or ``top`` if that is less.

    ``rectifier`` makes it of what ``maker`` makes; ``nodes`` quantize it and make it float again.
    """

    rectifier: gs.Node
    maker: _Layer
    nodes: Sequence[gs.Node]
    readers: Sequence[_Layer]
    scale: float
    top: float


def use_all_codes(graph: gs.Graph, makers: Container[str]) -> dict[str, float]:
    """Let int8 tensors from a Relu use all codes, in place; return the shift of each, by its maker's output.

    Those are outputs of a Relu, or of a Clip from 0, after a Conv or Gemm whose output is in ``makers``.
    One scale quantizes them to int8, and nothing reads them but Gemm and Conv without padding, also after a
    MaxPool or a change of shape. All have int32 biases whose scale is that of weight times input. No others
    are changed, nor scales that are powers of two. Up to the finer steps, and a rounding of the first bias,
    the model computes the same.
    """
    names, constants, outputs = walk.Names(graph), Constants(graph), walk.outputs(graph)
    shifts: dict[str, float] = {}
    gone: set[int] = set()
    for node in list(graph.nodes):
        found = _find(node, constants, outputs) if node.inputs and node.inputs[0].name in makers else None
        shift = _shift(found, names) if found is not None else None
        if found is not None and shift is not None:
            shifts[found.maker.node.outputs[0].name] = shift
            gone.add(id(node))
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    return shifts


def _find(node: gs.Node, constants: Constants, outputs: set[int]) -> _Tensor | None:
    """Return what has to change with the output of a Relu or Clip; None unless all of it can."""
    top = _top(node, constants)
    before = walk.producer(node.inputs[0]) if top is not None else None
    maker = _layer(before) if before is not None else None
    if top is None or maker is None or any(id(t) in outputs for t in (node.inputs[0], node.outputs[0])):
        return None
    first = node.outputs[0].outputs[0] if node.outputs[0].outputs else None
    scale = _int8_scale(first) if first is not None else None
    if scale is None or len(node.inputs[0].outputs) != 1 or top < scale:
        return None
    found = _Collector(scale, outputs)
    if not found.follow(node.outputs[0]):
        return None
    readers = [reader for layer in found.layers if (reader := _reader(layer, scale)) is not None]
    if len(readers) < len(found.layers):
        return None
    return _Tensor(node, maker, found.rounding, readers, scale, min(top, scale * _HIGHEST))


def _top(node: gs.Node, constants: Constants) -> float | None:
    """Return the upper bound of a Relu or of a Clip from 0; None for other nodes."""
    if node.domain not in STANDARD_DOMAINS or node.op not in ("Relu", "Clip"):
        return None
    if node.op == "Relu":
        return np.inf
    ends = [constants.scalar(t) if not t.is_empty() else None for t in node.inputs[1:3]]
    if not ends or ends[0] != 0 or (len(ends) > 1 and ends[1] is None and not node.inputs[2].is_empty()):
        return None
    return np.inf if len(ends) < 2 or ends[1] is None else float(ends[1])


class _Collector:
    """Follows a tensor through roundings of one scale, and what moves its elements, to layers."""

    def __init__(self, scale: float, outputs: set[int]) -> None:
        self.rounding: list[gs.Node] = []
        self.layers: list[gs.Node] = []
        self._scale, self._outputs = scale, outputs

    def follow(self, tensor: gs.Tensor) -> bool:
        """Return whether all readers of a float tensor quantize it, and layers alone read it in the end."""
        return self._each(tensor, self._quantizer)

    def _quantizer(self, node: gs.Node, index: int) -> bool:
        if index or _int8_scale(node) != self._scale:
            return False
        self.rounding.append(node)
        return self._each(node.outputs[0], self._back)

    def _back(self, node: gs.Node, index: int) -> bool:
        if index or node.op != "DequantizeLinear" or not _is_at_zero(node):
            return False
        if _one_number(node.inputs[1]) != self._scale:
            return False
        self.rounding.append(node)
        return self._each(node.outputs[0], self._reader)

    def _reader(self, node: gs.Node, index: int) -> bool:
        if index or node.domain not in STANDARD_DOMAINS:
            return False
        if node.op in _MOVING:
            return len(node.outputs) == 1 and self.follow(node.outputs[0])
        self.layers.append(node)
        return node.op in ("Conv", "Gemm")

    def _each(self, tensor: gs.Tensor, accepts: Callable[[gs.Node, int], bool]) -> bool:
        uses = walk.uses(tensor)
        return bool(uses) and id(tensor) not in self._outputs and all(accepts(*use) for use in uses)


def _int8_scale(node: gs.Node) -> float | None:
    """Return the scale of a QuantizeLinear to int8 by one number, without a zero point; None for others."""
    if node.op != "QuantizeLinear" or len(node.inputs) < 3 or not _is_at_zero(node):
        return None
    if load(node.inputs[2]).dtype != np.int8:
        return None
    return _one_number(node.inputs[1])


def _is_at_zero(node: gs.Node) -> bool:
    """Return whether the zero point of a node is 0, by an ONNX operator without blocks."""
    if node.domain not in STANDARD_DOMAINS or node.attrs.get("block_size", 0):
        return False
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return zero is None or zero.is_empty() or (isinstance(zero, gs.Constant) and not np.any(load(zero)))


def _one_number(scale: gs.Tensor) -> float | None:
    """Return a stored float32 scale of one element, unless it is a power of two."""
    if not isinstance(scale, gs.Constant):
        return None
    values = load(scale)
    if values.size != 1 or values.dtype != np.float32 or are_powers(values):
        return None
    return float(values.reshape(()))


def _layer(node: gs.Node) -> _Layer | None:
    """Return a Conv or Gemm with integer weights, and an int32 bias of its own; None for others."""
    if node.op not in ("Conv", "Gemm") or node.domain not in STANDARD_DOMAINS or len(node.inputs) < 3:
        return None
    if any(node.attrs.get(name, 1.0) != 1.0 for name in ("alpha", "beta")) or node.attrs.get("transA", 0):
        return None
    made = [_stored(node.inputs[index]) for index in (1, 2)]
    if made[0] is None or made[1] is None:
        return None
    weight, bias = made[0], made[1]
    numbers, steps = load(bias.inputs[0]), load(bias.inputs[1])
    if numbers.dtype != np.int32 or not (_is_own(bias) and np.all(steps > 0)):
        return None
    shape, scale = np.shape(load(weight.inputs[0])), load(weight.inputs[1])
    if numbers.size != shape[0 if _is_first(node) else 1] or numbers.shape[-1] != numbers.size:
        return None
    if scale.size > 1 and not _is_each_output(node, weight):
        return None
    may_grow = scale.size == numbers.size == steps.size and _is_own(weight)
    return _Layer(node, bias.inputs[0], bias.inputs[1], weight, may_grow)


def _stored(tensor: gs.Tensor) -> gs.Node | None:
    """Return the node that makes stored integers without a zero point float, by float32 scales."""
    node = walk.producer(tensor)
    if node is None or node.op != "DequantizeLinear" or not _is_at_zero(node):
        return None
    is_stored = all(isinstance(one, gs.Constant) for one in node.inputs[:2])
    return node if is_stored and load(node.inputs[1]).dtype == np.float32 else None


def _is_own(back: gs.Node) -> bool:
    """Return whether one layer alone reads stored integers and their scale."""
    return all(len(tensor.outputs) == 1 for tensor in (*back.inputs[:2], back.outputs[0]))


def _is_first(node: gs.Node) -> bool:
    """Return whether the outputs are the first axis of a layer's weight."""
    return node.op == "Conv" or bool(node.attrs.get("transB", 0))


def _is_each_output(node: gs.Node, weight: gs.Node) -> bool:
    axis = int(weight.attrs.get("axis", 1)) % np.ndim(load(weight.inputs[0]))
    return axis == (0 if _is_first(node) else 1)


def _reader(node: gs.Node, scale: float) -> _Layer | None:
    """Return a layer whose bias can take a shift of all that it reads; None for others."""
    layer = _layer(node)
    if layer is None or any(node.attrs.get("pads", ())):
        return None
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    products = scale * load(layer.weight.inputs[1]).astype(np.float64).reshape(-1)
    own = load(layer.steps).reshape(-1)
    is_product = own.size in (1, products.size) and np.allclose(products, own, rtol=_ALIKE, atol=0)
    return layer if is_product else None


def _shift(tensor: _Tensor, names: walk.Names) -> float | None:
    """Shift a tensor in place; return by how much, or None, with nothing changed, if a bias does not fit."""
    scale = np.float32(tensor.top / _CODES)
    ratio, middle = float(scale) / tensor.scale, _MIDDLE * float(scale)

    def _of_maker(layer: _Layer) -> Float64Array:
        return np.asarray(load(layer.numbers) - np.rint(middle / load(layer.steps).astype(np.float64)))

    def _of_reader(layer: _Layer) -> Float64Array:
        return np.asarray(np.rint(load(layer.numbers) / ratio) + _MIDDLE * layer.integers.sum(1))

    changes = [(tensor.maker, _of_maker, 1.0), *((one, _of_reader, ratio) for one in tensor.readers)]
    growths = [_growth(numbers(layer)) for layer, numbers, _ in changes]
    if any((growth > 1).any() and not one[0].may_grow for growth, one in zip(growths, changes, strict=True)):
        return None
    for (layer, numbers, factor), growth in zip(changes, growths, strict=True):
        _grow(layer, growth)
        layer.numbers.values = numbers(layer).astype(np.int32)
        layer.steps.values = (load(layer.steps) * factor).astype(np.float32)
    old = tensor.nodes[0].inputs[1]
    stored = constant(names.derive(old.name, "all_codes"), np.full(load(old).shape, scale, np.float32))
    for node in tensor.nodes:
        node.inputs[1] = stored
    walk.redirect(tensor.rectifier.outputs[0], tensor.rectifier.inputs[0])
    detach(tensor.rectifier)
    return middle


def _growth(numbers: Float64Array) -> Float64Array:
    """Return the powers of two by which steps have to be larger so that numbers fit into int32."""
    needed = np.abs(numbers) * _ROOM / _LARGEST
    return np.asarray(np.exp2(np.ceil(np.log2(np.maximum(needed, 1.0)))))


def _grow(layer: _Layer, growth: Float64Array) -> None:
    """Make the scales of a weight larger, and the steps of the bias with them.

    Products are smaller than the bias there by far, so that rounding the weights anew loses nothing.
    """
    if not (growth > 1).any():
        return
    weight, scale = layer.weight.inputs[:2]
    numbers, factors = load(weight), growth.astype(np.float32)
    by_output = growth.reshape(-1, *[1] * (numbers.ndim - 1)) if _is_first(layer.node) else growth
    weight.values = np.rint(numbers.astype(np.float64) / by_output).astype(numbers.dtype)
    scale.values = load(scale) * factors.reshape(load(scale).shape)
    layer.steps.values = load(layer.steps) * factors.reshape(load(layer.steps).shape)
    layer.numbers.values = np.rint(load(layer.numbers) / growth).astype(np.int32)
