"""Find the inputs whose values an output carries on to the next step, according to the nodes.

A cache is an input to which new values are appended, or into which they are written; the last state of a
recurrent layer, a linear attention or a causal convolution depends on its initial state. Only nodes that
move values may stand between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.qdq import STANDARD

_MOVES = frozenset(
    {
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Identity",
        "Slice",
        "Split",
        "Gather",
        "Cast",
    }
    | {"Expand", "Pad", *STANDARD, "ScatterND", "ScatterElements", "TensorScatter"}
)
"""Operators that take their values from the first input."""

_STATES: Mapping[str, Mapping[int, int]] = MappingProxyType(
    {
        "LSTM": {1: 5, 2: 6},
        "DynamicQuantizeLSTM": {1: 5, 2: 6},
        "GRU": {1: 5},
        "RNN": {1: 5},
        "GroupQueryAttention": {1: 3, 2: 4},
        "SparseAttention": {1: 3, 2: 4},
        "PagedAttention": {1: 3, 2: 4},
        "DecoderMaskedMultiHeadAttention": {1: 5, 2: 6},
        "MultiHeadAttention": {1: 6, 2: 7},
        "Attention": {1: 4, 2: 5},
        "LinearAttention": {1: 3},
        "GatedDeltaNet": {1: 6},
        "CausalConvWithState": {1: 3},
        "VarlenCausalConvWithState": {1: 4},
    }
)
"""The input from which each state output follows, by operator."""


def carried_inputs(output: gs.Tensor) -> list[gs.Tensor]:
    """Return the inputs of the model, or of a body, whose values an output carries on."""
    return [tensor for tensor in _way(output) if walk.is_source(tensor) and not walk.is_given(tensor)]


def makers(output: gs.Tensor) -> list[gs.Node]:
    """Return the nodes that compute the values of an output, before any nodes that only move them."""
    nodes = (walk.producer(tensor) for tensor in _way(output, computed=False))
    return [node for node in nodes if node is not None and not _moves(node)]


def _moves(node: gs.Node) -> bool:
    return node.op in _MOVES or node.op in ("Concat", "Where", "If")


def _way(output: gs.Tensor, *, computed: bool = True) -> Iterator[gs.Tensor]:
    """Yield a tensor and those whose values it carries on, also through layers and loops if ``computed``."""
    waiting, seen = [output], set[int]()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        yield tensor
        node = walk.producer(tensor)
        if node is not None and (computed or _moves(node)):
            place = next(i for i, candidate in enumerate(node.outputs) if candidate is tensor)
            waiting += _before(node, place)


def _before(node: gs.Node, place: int) -> list[gs.Tensor]:
    """Return the tensors whose values the output of a node at a place carries on."""
    if node.op == "Concat":
        return list(node.inputs)
    if node.op == "Where":
        return list(node.inputs[1:])
    if node.op == "If":
        return [body.outputs[place] for body in walk.bodies(node)]
    if node.op in _MOVES:
        return list(node.inputs[:1])
    if node.op in ("Loop", "Scan"):
        states = node.inputs[2:] if node.op == "Loop" else node.inputs[: _states_of_scan(node)]
        return list(states[place : place + 1])
    at = _STATES.get(node.op, {}).get(place, len(node.inputs))
    return list(node.inputs[at : at + 1])


def _states_of_scan(node: gs.Node) -> int:
    return max(0, len(node.inputs) - int(node.attrs.get("num_scan_inputs", len(node.inputs))))
