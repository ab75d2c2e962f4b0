"""Keys and values that a decoder takes from an encoder, computed once and returned unchanged.

A decoder takes and returns them, or computes them in a branch of an If for the first step; the other branch
returns what was taken, or nothing. Some decoders only take them, from another model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import onnx_op
from transforms.graph.state_outputs import found_pairs

PASSES = ("Identity", "Cast")
"""Nodes that may stand between the input and the output."""

LEAST_RANK = 3  # batch, positions, channels

_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Identity", "Cast"})
_FACTORS = ("Mul", "Div")
_ATTENTIONS = frozenset({"MultiHeadAttention", "DecoderMaskedMultiHeadAttention"})
_KEYS_AND_VALUES = (1, 2)  # inputs of an attention
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Einsum"})
_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16)


@dataclass(frozen=True)
class PassedState:
    """An input of keys or values, and the output that returns it, if there is one."""

    past: gs.Variable
    present: gs.Variable | None = None

    @property
    def name(self) -> str:
        """The name of the output, or of the input without one."""
        return str((self.past if self.present is None else self.present).name)

    @property
    def is_made_here(self) -> bool:
        """Whether a branch of the model computes it for the first step."""
        ends = [] if self.present is None else leaves(self.present)
        return any(leaf is not self.past and not isinstance(leaf, gs.Constant) for leaf in ends)

    @property
    def channels(self) -> tuple[int, ...]:
        """The axes along which scales differ: those of fixed size, without the batch."""
        return tuple(axis for axis, size in enumerate(self.past.shape) if axis and isinstance(size, int))


def find_passed(graph: gs.Graph) -> list[PassedState]:
    """Return the states of a float model that attentions read as keys or values and no step changes.

    Raises ValueError for an input that is returned by an output which cannot be paired with it by name.
    """
    pairs = found_pairs(graph)
    outputs = {str(output.name): output for output in graph.outputs}
    fed = [tensor for tensor in graph.inputs if tensor.name in pairs]
    handed = {id(tensor) for output in graph.outputs for tensor in leaves(output)}
    states = []
    for past in graph.inputs:
        state = PassedState(past, outputs.get(pairs.get(str(past.name), "")))
        if not _is_float(past) or not _is_read(state):
            continue
        if state.present is not None:
            states += [state] if _is_unchanged(state, fed) else []
        elif id(past) in handed:
            raise ValueError(f"input '{past.name}' is handed out, but no output is known to be its own")
        else:
            states.append(state)
    return states


def leaves(tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    """Yield the tensors from which a tensor is passed on by Identity, Cast and branches of If."""
    node = walk.producer(tensor)
    if node is not None and onnx_op(node) in PASSES:
        yield from leaves(node.inputs[0])
    elif node is not None and onnx_op(node) == "If":
        place = next(i for i, output in enumerate(node.outputs) if output is tensor)
        for body in walk.bodies(node):
            yield from leaves(body.outputs[place])
    else:
        yield tensor


def _is_read(state: PassedState) -> bool:
    """Return whether attentions read a state, or its output, and every reader takes float32."""
    present = [] if state.present is None else _between(state.present)
    reads = [use for tensor in (state.past, *present) for use in walk.uses_beyond(tensor, _moves)]
    return any(_is_attention(*use) for use in reads) and all(map(_reads_float, state.past.outputs))


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
    """Return whether an output is the unchanged state, or computed from no state."""
    past, present = state.past, state.present
    if present is None or past.dtype != present.dtype or len(present.shape or ()) != len(past.shape):
        return False
    states = {id(state_input) for state_input in fed}
    return all(_is_kept(leaf, past, states) for leaf in leaves(present))


def _is_kept(leaf: gs.Tensor, past: gs.Tensor, states: set[int]) -> bool:
    """Return whether a tensor is the state, or computed from no state, or empty."""
    if leaf is past or isinstance(leaf, gs.Constant):
        return True
    return walk.producer(leaf) is not None and states.isdisjoint(walk.ancestors(leaf))


def _reads_float(node: gs.Node) -> bool:
    """Return whether a node reads a state as float32, or casts it to float32."""
    return not dtypes.is_type(node.inputs[0], dtypes.FLOAT16) or onnx_op(node) in ("Cast", "Shape")


def _between(present: gs.Tensor) -> Iterator[gs.Tensor]:
    """Yield an output and the tensors it is computed from through Identity and Cast."""
    yield present
    node = walk.producer(present)
    if node is not None and onnx_op(node) in PASSES:
        yield from _between(node.inputs[0])


def _is_float(tensor: gs.Tensor) -> bool:
    return len(tensor.shape or ()) >= LEAST_RANK and any(
        dtypes.is_type(tensor, element) for element in _FLOATS
    )


def _is_computed(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is computed, not a weight nor a dequantized one."""
    way = _MOVES | {"DequantizeLinear"}
    while (node := walk.producer(tensor)) is not None and node.op in way:
        tensor = node.inputs[0]
    return not walk.is_given(tensor)
