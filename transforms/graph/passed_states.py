"""Keys and values that a decoder takes from an encoder: computed once, and handed out as they were taken.

A decoder takes them and returns them, or computes them in the branch of an If for the first step; the other
branch returns what it took, or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import onnx_op
from transforms.graph.state_outputs import found_pairs

PASSES = ("Identity", "Cast")
"""Nodes between what is taken and what is handed out."""

LEAST_RANK = 3  # batch, positions, channels

_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Identity", "Cast"})
_ATTENTIONS = frozenset({"MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "Attention"})
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Einsum"})
_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16)


@dataclass(frozen=True)
class PassedState:
    """An input of keys or values, and the output that hands them out."""

    past: gs.Variable
    present: gs.Variable

    @property
    def channels(self) -> tuple[int, ...]:
        """The axes that scales belong to: those whose size is known, without the batch."""
        return tuple(axis for axis, size in enumerate(self.past.shape) if axis and isinstance(size, int))


def find_passed(graph: gs.Graph) -> list[PassedState]:
    """Return the states of a float model that attentions read and no step changes."""
    pairs = found_pairs(graph)
    inputs = {str(one.name): one for one in graph.inputs}
    outputs = {str(one.name): one for one in graph.outputs}
    fed = [inputs[name] for name in pairs]
    states = [PassedState(inputs[name], outputs[back]) for name, back in pairs.items()]
    return [one for one in states if _is_passed(one, fed)]


def unpaired_passed(graph: gs.Graph) -> list[str]:
    """Return the inputs of keys or values that outputs hand out unchanged, of which none is surely theirs."""
    paired = found_pairs(graph)
    handed = {id(tensor) for output in graph.outputs for tensor in leaves(output)}
    return [
        str(one.name)
        for one in graph.inputs
        if one.name not in paired and id(one) in handed and _is_float(one) and feeds_attention([one])
    ]


def taken_alone(graph: gs.Graph, others: Collection[gs.Variable]) -> list[str]:
    """Return the inputs that attentions read as they read others, of the same known sizes, and that no output
    hands out: what another model makes.
    """
    known = {_known(one) for one in others}
    paired = found_pairs(graph)
    return [
        str(one.name)
        for one in graph.inputs
        if one.name not in paired and _is_float(one) and _known(one) in known and feeds_attention([one])
    ]


def leaves(tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    """Yield the tensors that one is, beyond Identity, Cast and the branches of If."""
    node = walk.producer(tensor)
    if node is not None and onnx_op(node) in PASSES:
        yield from leaves(node.inputs[0])
    elif node is not None and onnx_op(node) == "If":
        place = next(i for i, one in enumerate(node.outputs) if one is tensor)
        for body in walk.bodies(node):
            yield from leaves(body.outputs[place])
    else:
        yield tensor


def feeds_attention(tensors: Collection[gs.Tensor]) -> bool:
    """Return whether numbers of some tensors are in a product with what is computed, or in an attention."""
    waiting, seen = list(tensors), set[int]()
    while waiting:
        for node, place in walk.uses(waiting.pop()):
            if id(node) in seen:
                continue
            if node.op in _ATTENTIONS or (node.op in _PRODUCTS and _is_between_computed(node)):
                return True
            if node.op in _MOVES and place == 0:
                seen.add(id(node))
                waiting += node.outputs
    return False


def _is_passed(state: PassedState, fed: Collection[gs.Tensor]) -> bool:
    past, present = state.past, state.present
    if not _is_float(past) or past.dtype != present.dtype or len(present.shape or ()) != len(past.shape):
        return False
    states = {id(one) for one in fed}
    if not all(_is_kept(one, past, states) for one in leaves(present)):
        return False
    return all(map(_reads_float, past.outputs)) and feeds_attention([past, *_between(present)])


def _is_kept(leaf: gs.Tensor, past: gs.Tensor, states: Collection[int]) -> bool:
    """Return whether a tensor is the state, or made of no state, or nothing."""
    if leaf is past or isinstance(leaf, gs.Constant):
        return True
    return walk.producer(leaf) is not None and states.isdisjoint(walk.ancestors(leaf))


def _reads_float(node: gs.Node) -> bool:
    """Return whether a node reads a state as float32, or after a Cast to it."""
    return not dtypes.is_type(node.inputs[0], dtypes.FLOAT16) or onnx_op(node) in ("Cast", "Shape")


def _between(present: gs.Tensor) -> Iterator[gs.Tensor]:
    """Yield an output and the tensors that it was before Identity and Cast."""
    yield present
    node = walk.producer(present)
    if node is not None and onnx_op(node) in PASSES:
        yield from _between(node.inputs[0])


def _is_float(tensor: gs.Tensor) -> bool:
    return len(tensor.shape or ()) >= LEAST_RANK and any(dtypes.is_type(tensor, one) for one in _FLOATS)


def _known(tensor: gs.Tensor) -> tuple[tuple[int, int], ...]:
    """Return the axes beside the batch whose sizes are known, and these."""
    return tuple((i, size) for i, size in enumerate(tensor.shape or ()) if i and isinstance(size, int))


def _is_between_computed(node: gs.Node) -> bool:
    return all(map(_is_computed, node.inputs[:2]))


def _is_computed(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is no weight, not even one in few bits."""
    while (node := walk.producer(tensor)) is not None and (
        node.op in _MOVES or node.op == "DequantizeLinear"
    ):
        tensor = node.inputs[0]
    return not walk.is_given(tensor)
