"""Keys and values that a decoder takes from an encoder: computed once, and handed out as they were taken.

A decoder takes them and returns them, or computes them in the branch of an If for the first step; the other
branch returns what it took, or nothing. Others take them alone, from another model.
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
_FACTORS = ("Mul", "Div")
_ATTENTIONS = frozenset({"MultiHeadAttention", "DecoderMaskedMultiHeadAttention"})
_KEYS_AND_VALUES = (1, 2)  # inputs of an attention
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Einsum"})
_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16)


@dataclass(frozen=True)
class PassedState:
    """An input of keys or values, and the output that hands them out, if one does."""

    past: gs.Variable
    present: gs.Variable | None = None

    @property
    def name(self) -> str:
        """The name of the output, or of an input alone."""
        return str((self.past if self.present is None else self.present).name)

    @property
    def is_made_here(self) -> bool:
        """Whether a branch of the model computes it for the first step."""
        made = [] if self.present is None else leaves(self.present)
        return any(leaf is not self.past and not isinstance(leaf, gs.Constant) for leaf in made)

    @property
    def channels(self) -> tuple[int, ...]:
        """The axes that scales belong to: those whose size is known, without the batch."""
        return tuple(axis for axis, size in enumerate(self.past.shape) if axis and isinstance(size, int))


def find_passed(graph: gs.Graph) -> list[PassedState]:
    """Return the states of a float model that attentions read as keys or values and no step changes.

    Raises ValueError for an input that outputs hand out, of which none is surely its own.
    """
    pairs = found_pairs(graph)
    outputs = {str(one.name): one for one in graph.outputs}
    fed = [one for one in graph.inputs if one.name in pairs]
    handed = {id(tensor) for output in graph.outputs for tensor in leaves(output)}
    found = []
    for past in graph.inputs:
        state = PassedState(past, outputs.get(pairs.get(str(past.name), "")))
        if not _is_float(past) or not _is_read(state):
            continue
        if state.present is not None:
            found += [state] if _is_unchanged(state, fed) else []
        elif id(past) in handed:
            raise ValueError(f"input '{past.name}' is handed out, but no output is known to be its own")
        else:
            found.append(state)
    return found


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


def _is_read(state: PassedState) -> bool:
    """Return whether attentions read a state, or the output that hands it out, and all in float32."""
    present = [] if state.present is None else _between(state.present)
    reads = [one for tensor in (state.past, *present) for one in walk.uses_beyond(tensor, _moves)]
    return any(_is_attention(*one) for one in reads) and all(map(_reads_float, state.past.outputs))


def _moves(node: gs.Node, place: int) -> bool:
    if node.op in _FACTORS:  # of one number, as where keys have a part of the scale
        other = node.inputs[1 - place]
        return other.shape is not None and len(other.shape) < LEAST_RANK
    return node.op in _MOVES and place == 0


def _is_attention(node: gs.Node, place: int) -> bool:
    """Return whether a node reads keys or values at a place, and no weight at the other."""
    if node.op in _PRODUCTS:
        return place == 1 and _is_computed(node.inputs[0])
    is_attention = node.op in _ATTENTIONS or onnx_op(node) == "Attention"
    return is_attention and place in _KEYS_AND_VALUES


def _is_unchanged(state: PassedState, fed: Collection[gs.Tensor]) -> bool:
    """Return whether an output is the state as it was taken, or made of no state."""
    past, present = state.past, state.present
    if present is None or past.dtype != present.dtype or len(present.shape or ()) != len(past.shape):
        return False
    states = {id(one) for one in fed}
    return all(_is_kept(one, past, states) for one in leaves(present))


def _is_kept(leaf: gs.Tensor, past: gs.Tensor, states: set[int]) -> bool:
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


def _is_computed(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is no weight, not even one in few bits."""
    way = _MOVES | {"DequantizeLinear"}
    while (node := walk.producer(tensor)) is not None and node.op in way:
        tensor = node.inputs[0]
    return not walk.is_given(tensor)
