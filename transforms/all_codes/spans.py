"""Spans of a quantized graph: tensors on one int8 scale without a zero point, from entries to readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ops.powers_of_two import are_powers
from transforms.all_codes.integer_layers import is_at_zero
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.rewire import STANDARD_DOMAINS

MOVING = frozenset({"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that commute with the shift of their input."""


@dataclass
class Span:
    """What an int8 scale stands for.

    ``rounding``: the nodes that quantize and make float again. ``entries``: the float tensors that come in.
    ``readers``: nodes, and which of their inputs, that read it beyond moves and Concats within.
    """

    scale: float
    rounding: list[gs.Node] = field(default_factory=list)
    entries: list[gs.Tensor] = field(default_factory=list)
    readers: list[tuple[gs.Node, int]] = field(default_factory=list)

    @property
    def quantized(self) -> list[str]:
        """The names of the float tensors that are quantized: entries, and those made of them by moving."""
        found = (str(node.inputs[0].name) for node in self.rounding if node.op == "QuantizeLinear")
        return list(dict.fromkeys(found))


def spans(graph: gs.Graph) -> Iterator[Span]:
    """Yield the spans of a graph that hold no output of it, in execution order."""
    outputs, seen = walk.outputs(graph), set[int]()
    for node in graph.nodes:
        scale = int8_scale(node)
        if scale is None or id(node) in seen:
            continue
        found = _Finder(scale, outputs)
        if found.follow(node):
            yield found.span
        seen |= found.seen


class _Finder:
    """Follows one span in both directions."""

    def __init__(self, scale: float, outputs: set[int]) -> None:
        self.span, self.seen = Span(scale), set[int]()
        self._outputs = outputs

    def follow(self, first: gs.Node) -> bool:
        """Return whether all roundings that are reached from a QuantizeLinear make a span."""
        waiting, entries = [first], dict[int, gs.Tensor]()
        while waiting:
            node = waiting.pop()
            if id(node) in self.seen:
                continue
            self.seen.add(id(node))
            found = self._visit(node, entries)
            if found is None:
                return False
            waiting += found
        self.span.entries = list(entries.values())
        return True

    def _visit(self, node: gs.Node, entries: dict[int, gs.Tensor]) -> list[gs.Node] | None:
        """Take a QuantizeLinear and what reads it; return the others that it leads to, None if it ends it."""
        tensor, found = node.inputs[0], []
        maker = walk.producer(tensor)
        if maker is not None and self._passes(maker):
            found += self._before(maker)
        else:
            entries[id(tensor)] = tensor
        self.span.rounding.append(node)
        if id(node.outputs[0]) in self._outputs:
            return None
        for back, index in walk.uses(node.outputs[0]):
            if not self._is_back(back) or index or id(back.outputs[0]) in self._outputs:
                return None
            self.span.rounding.append(back)
            for reader, place in walk.uses(back.outputs[0]):
                if self._passes(reader) and self._is_data(reader, place):
                    found += [*reader.outputs[0].outputs, *self._before(reader)]
                else:
                    self.span.readers.append((reader, place))
        return found

    def _passes(self, node: gs.Node) -> bool:
        """Return whether a node moves numbers of the span, and integers of it alone read what it moves."""
        if node.domain not in STANDARD_DOMAINS or node.op not in (*MOVING, "Concat"):
            return False
        if len(node.outputs) != 1 or id(node.outputs[0]) in self._outputs:
            return False
        makers = [walk.producer(tensor) for tensor in self._data(node)]
        if not all(maker is not None and self._is_back(maker) for maker in makers):
            return False
        if not all(walk.producer(maker.inputs[0]) is not None for maker in makers if maker is not None):
            return False
        users = walk.uses(node.outputs[0])
        return bool(users) and all(not index and int8_scale(user) == self.span.scale for user, index in users)

    def _data(self, node: gs.Node) -> list[gs.Tensor]:
        return list(node.inputs if node.op == "Concat" else node.inputs[:1])

    def _is_data(self, node: gs.Node, index: int) -> bool:
        return node.op == "Concat" or index == 0

    def _before(self, node: gs.Node) -> list[gs.Node]:
        return [tensor.inputs[0].inputs[0].inputs[0] for tensor in self._data(node)]

    def _is_back(self, node: gs.Node) -> bool:
        if node.op != "DequantizeLinear" or not is_at_zero(node):
            return False
        return one_number(node.inputs[1]) == self.span.scale


def int8_scale(node: gs.Node) -> float | None:
    """Return the scale of a QuantizeLinear to int8 by one number, without a zero point; None for others."""
    if node.op != "QuantizeLinear" or len(node.inputs) < 3 or not is_at_zero(node):
        return None
    if load(node.inputs[2]).dtype != np.int8:
        return None
    return one_number(node.inputs[1])


def one_number(scale: gs.Tensor) -> float | None:
    """Return a stored float32 scale of one element, unless it is a power of two."""
    if not isinstance(scale, gs.Constant):
        return None
    values = load(scale)
    if values.size != 1 or values.dtype != np.float32 or are_powers(values):
        return None
    return float(values.reshape(()))
