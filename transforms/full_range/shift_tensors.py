"""All codes of int8 for tensors that are never negative: without a zero point, half of them are not used.

A Relu or Clip makes numbers x in [0, t]. Rounded instead is x' = x - 128 s with s = t / 255, in steps half as
large. The bias of the layer in front takes the shift, the saturation of int8 does what the Relu did, and the
layers that read x add 128 s times the sum of their weights by their biases. That is exact: an integer in
the steps of an int32 bias, and the arithmetic of a zero point, with none in the model and a node less.

The zeros that a Conv pads with have to be shifted, too: a Pad does that if it may be added,
and a Sub shifts an input of the model that is never negative.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from transforms.all_codes.integer_layers import IntegerLayer, integer_layer, is_at_zero
from transforms.all_codes.move_zero import layer_that_reads, move_zero, top_of_rectifier
from transforms.all_codes.pad_codes import LEAST_OPSET, Padding
from transforms.all_codes.recorded_shifts import record_shifts
from transforms.all_codes.spans import MOVING, int8_scale, one_number
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants, load
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import STANDARD_DOMAINS, Insertions, detach

_CODES, _MIDDLE, _HIGHEST = 255, 128, 127
TUNED_ROOM = 1.25
"""Times the range of a tensor when its codes double. A range of least squared error grows by about an eighth,
and a wider one costs little if weights are tuned to it, while new data exceed those it was measured on."""


@dataclass
class _Tensor:
    """A tensor of numbers from 0 to ``scale * 127``, or ``bound`` if that is less.

    ``rectifier`` makes it of what ``maker`` makes, both None for an input of the model; ``nodes`` quantize it
    and make it float again.
    """

    made: gs.Tensor
    rectifier: gs.Node | None
    maker: IntegerLayer | None
    nodes: Sequence[gs.Node]
    readers: Sequence[IntegerLayer]
    scale: float
    bound: float = np.inf

    @property
    def name(self) -> str:
        """That of what the maker makes, or of the input."""
        return str((self.made if self.maker is None else self.maker.node.outputs[0]).name)

    @property
    def quantized(self) -> list[str]:
        """The names of the float tensors that are quantized: its own, and those made of it by moving."""
        return [str(node.inputs[0].name) for node in self.nodes if node.op == "QuantizeLinear"]


def use_all_codes(
    graph: gs.Graph,
    makers: Container[str] | None = None,
    inputs: Container[str] = (),
    *,
    padded: bool = False,
    room: float = TUNED_ROOM,
    tops: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Let int8 tensors use all codes, in place; return the shift of each, by its maker's output or as input.

    Those are outputs of a Relu, or of a Clip from 0, after a Conv or Gemm, one whose output is in ``makers``
    if that is given, and inputs of the model of these names, which are never negative. One scale quantizes
    them to int8, and nothing reads them but Gemm and Conv, also after a MaxPool or a change of shape; a Conv
    that pads only if it may get a Pad (``padded``). All have weights of 8 bits, for the error of fewer is
    that of the weights, and int32 biases whose scale is that of weight times input. No others are changed,
    nor scales that are powers of two. What a layer makes has a range up to that in ``tops``, by the name of
    the tensor that is quantized, or wider by ``room``, and up to the bound of a Clip.

    Up to other steps, and roundings of the first bias and of inputs, the model computes the same. Its
    metadata record the shifts (:mod:`transforms.all_codes.recorded_shifts`).
    """
    names, constants, outputs = walk.Names(graph), Constants(graph), walk.outputs(graph)
    insertions = Insertions()
    padding = Padding(graph, names, insertions) if padded and graph.opset >= LEAST_OPSET else None
    shifts: dict[str, float] = {}
    of_float: dict[str, float] = {}

    def _take(found: _Tensor | None) -> None:
        quantized = found.quantized if found is not None else []
        shift = _shift(found, names, room, tops or {}) if found is not None else None
        if found is None or shift is None:
            return
        shifts[found.name] = shift
        of_float.update(dict.fromkeys((found.name, *quantized), shift))
        if found.maker is None:
            _subtract(graph, found, shift, names, insertions)
        for reader in found.readers:
            if padding is not None and any(reader.node.attrs.get("pads", ())):
                padding.add(reader.node, found.nodes[0])

    for tensor in graph.inputs:
        if tensor.name in inputs and id(tensor) not in outputs:
            _take(_found(tensor, None, None, outputs, padded=padding is not None))
    for node in [node for node in graph.nodes if node.inputs and _is_among(node.inputs[0].name, makers)]:
        _take(_find(node, constants, outputs, padded=padding is not None))
    insertions.place(graph)
    graph.nodes = [node for node in graph.nodes if node.outputs]  # the others were detached
    record_shifts(graph, of_float)
    return shifts


def _is_among(name: str, makers: Container[str] | None) -> bool:
    return makers is None or name in makers


def count_added(graph: gs.Graph) -> int:
    """Return the number of nodes of the kinds that shifts may add."""
    return sum(node.op in ("Pad", "Add", "Sub") for node in graph.nodes)


def _find(node: gs.Node, constants: Constants, outputs: set[int], *, padded: bool) -> _Tensor | None:
    """Return what has to change with the output of a Relu or Clip; None unless all of it can."""
    top = top_of_rectifier(node, constants)
    before = walk.producer(node.inputs[0]) if top is not None else None
    maker = integer_layer(before) if before is not None else None
    if top is None or maker is None or any(id(t) in outputs for t in (node.inputs[0], node.outputs[0])):
        return None
    if len(node.inputs[0].outputs) != 1:
        return None
    found = _found(node.outputs[0], node, maker, outputs, padded=padded)
    return replace(found, bound=top) if found is not None and top >= found.scale else None


def _found(
    tensor: gs.Tensor,
    rectifier: gs.Node | None,
    maker: IntegerLayer | None,
    outputs: set[int],
    *,
    padded: bool,
) -> _Tensor | None:
    """Return what quantizes and reads a tensor; None if there is anything else that does."""
    first = tensor.outputs[0] if tensor.outputs else None
    scale = int8_scale(first) if first is not None else None
    if scale is None:
        return None
    users = _Collector(scale, outputs)
    if not users.follow(tensor):
        return None
    readers = [
        reader for one in users.layers if (reader := layer_that_reads(one, scale, padded=padded)) is not None
    ]
    if len(readers) < len(users.layers):
        return None
    return _Tensor(tensor, rectifier, maker, users.rounding, readers, scale)


_Accepts = Callable[[gs.Node], "tuple[gs.Tensor, _Accepts] | bool"]
"""Returns whether a node may read a tensor, or what it makes and who may read that."""


class _Collector:
    """Follows a tensor through roundings of one scale, and what moves its elements, to layers."""

    def __init__(self, scale: float, outputs: set[int]) -> None:
        self.rounding: list[gs.Node] = []
        self.layers: list[gs.Node] = []
        self._scale, self._outputs = scale, outputs

    def follow(self, tensor: gs.Tensor) -> bool:
        """Return whether all readers of a float tensor quantize it, and layers alone read it in the end."""
        pending: list[tuple[gs.Node, int, _Accepts]] = []
        goes_on: tuple[gs.Tensor, _Accepts] | bool = (tensor, self._quantizer)
        while goes_on:
            if not isinstance(goes_on, bool):
                made, accepts = goes_on
                uses = walk.uses(made)
                if not uses or id(made) in self._outputs:
                    return False
                pending += [(node, index, accepts) for node, index in reversed(uses)]
            if not pending:
                return True
            node, index, accepts = pending.pop()
            goes_on = index == 0 and accepts(node)
        return False

    def _quantizer(self, node: gs.Node) -> tuple[gs.Tensor, _Accepts] | bool:
        if int8_scale(node) != self._scale:
            return False
        self.rounding.append(node)
        return node.outputs[0], self._back

    def _back(self, node: gs.Node) -> tuple[gs.Tensor, _Accepts] | bool:
        if node.op != "DequantizeLinear" or not is_at_zero(node):
            return False
        if one_number(node.inputs[1]) != self._scale:
            return False
        self.rounding.append(node)
        return node.outputs[0], self._reader

    def _reader(self, node: gs.Node) -> tuple[gs.Tensor, _Accepts] | bool:
        if node.domain not in STANDARD_DOMAINS:
            return False
        if node.op in MOVING:
            return len(node.outputs) == 1 and (node.outputs[0], self._quantizer)
        self.layers.append(node)
        return node.op in ("Conv", "Gemm")


def _shift(tensor: _Tensor, names: walk.Names, room: float, tops: Mapping[str, float]) -> float | None:
    """Shift a tensor in place; return by how much, or None, with nothing changed, if a bias does not fit."""
    scale = np.float32(min(tensor.bound, _top_of(tensor, room, tops)) / _CODES)
    makers = [] if tensor.maker is None else [tensor.maker]
    if not move_zero(makers, tensor.readers, tensor.scale, float(scale), -_MIDDLE):
        return None
    old = tensor.nodes[0].inputs[1]
    stored = constant(names.derive(old.name, "all_codes"), np.full(load(old).shape, scale, np.float32))
    for node in tensor.nodes:
        node.inputs[1] = stored
    if tensor.rectifier is not None:
        walk.redirect(tensor.rectifier.outputs[0], tensor.rectifier.inputs[0])
        detach(tensor.rectifier)
    return _MIDDLE * float(scale)


def _top_of(tensor: _Tensor, room: float, tops: Mapping[str, float]) -> float:
    """Return the upper end of the range that a tensor is to have; that of an input stays."""
    if tensor.maker is None:
        return tensor.scale * _HIGHEST
    found = [tops[name] for name in tensor.quantized if tops.get(name, 0.0) > 0]
    return max(found, default=tensor.scale * _HIGHEST * room)


def _subtract(
    graph: gs.Graph, tensor: _Tensor, shift: float, names: walk.Names, insertions: Insertions
) -> None:
    """Shift an input of the model in float, before it is quantized."""
    shifted = dtypes.variable(names.derive(tensor.name, "shifted"), dtypes.FLOAT, tensor.made)
    middle = constant(names.derive(tensor.name, "shift"), np.asarray(shift, np.float32))
    for node in tensor.nodes:
        if node.inputs[0] is tensor.made:
            node.inputs[0] = shifted
    node = gs.Node("Sub", names.derive(tensor.name, "shift_codes"), {}, [tensor.made, middle], [shifted])
    insertions.add(graph, None, [node])
