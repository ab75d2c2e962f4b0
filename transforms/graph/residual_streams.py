"""The residual stream of a transformer that normalizes before its layers, and all that reads and writes it.

A stream is a set of tensors with the same channels. Layers and embeddings write it, Adds join it, nodes move
it or multiply its rows with numbers; normalizations, whose scale comes out into the layers after them, and
layers read it. An orthogonal matrix on its channels can then be taken into weights.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.left_operands import multiplies
from transforms.graph.moved_axis import MOVES, axes_of, moved_axis
from transforms.graph.stream_norms import NORMS, SHAPES, Norm, Place, RefusedError, StreamNodes, is_vector

_SQUARES = frozenset({"ReduceL2", "ReduceSumSquare"})
_LEAST_CHANNELS = 8


@dataclass
class Stream:
    """Tensors, by id, with the axes of their channels; the constants that write and read them; the norms.

    ``keeps_mean``: whether a norm subtracts the mean of the channels.
    """

    channels: int
    tensors: dict[int, tuple[gs.Tensor, int]] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    keeps_mean: bool = False

    @property
    def first(self) -> gs.Tensor:
        """What the first norm reads."""
        return next(iter(self.tensors.values()))[0]

    @property
    def name(self) -> str:
        """The name of its first tensor."""
        return str(self.first.name)


class StreamFinder:
    """Finds the streams of the outermost graph of which a rotation can be taken into weights."""

    def __init__(self, graph: gs.Graph, exclude: Container[gs.Node] = ()) -> None:
        """Note what must not change in the graph, and nodes that must not."""
        self._graph, self._nodes = graph, StreamNodes(graph, exclude)

    def streams(self) -> list[Stream]:
        """Return them in the order of their first norms."""
        found: list[Stream] = []
        seen: set[int] = set()
        for node in self._graph.nodes:
            source = node.inputs[0] if _is_seed(node) else None
            if source is None or id(source) in seen or not source.shape:
                continue
            stream = Stream(int(source.shape[-1])) if isinstance(source.shape[-1], int) else None
            if stream is not None and stream.channels >= _LEAST_CHANNELS:
                if _Walk(self._nodes, stream).takes(source):
                    found.append(stream)
                seen |= stream.tensors.keys()
        return found


class _Walk:
    """Fills a stream with all that hangs together with one tensor."""

    def __init__(self, nodes: StreamNodes, stream: Stream) -> None:
        self._nodes, self._stream = nodes, stream
        self._waiting: list[tuple[gs.Tensor, int]] = []
        self._done: set[tuple[int, str]] = set()

    def takes(self, tensor: gs.Tensor) -> bool:
        """Return whether all around a tensor can take a rotation in."""
        try:
            self._add(tensor, -1)
            while self._waiting:
                found, axis = self._waiting.pop()
                maker = walk.producer(found)
                if maker is None or self._nodes.is_fixed(found):
                    raise RefusedError
                self._write(maker, found, axis)
                for node, index in walk.uses(found):
                    self._read(node, index, axis)
        except (RefusedError, IndexError, TypeError):
            return False
        return bool(self._stream.norms)

    def _was_seen(self, node: gs.Node, role: str) -> bool:
        """Note that a node was seen in a role; return whether it was before."""
        seen = (id(node), role) in self._done
        self._done.add((id(node), role))
        return seen

    def _add(self, tensor: gs.Tensor, axis: int) -> None:
        """Take a tensor into the stream."""
        known = self._stream.tensors.get(id(tensor))
        if known is not None and known[1] == axis:
            return
        is_float = isinstance(tensor, gs.Variable) and dtypes.is_type(tensor, dtypes.FLOAT)
        if known is not None or not is_float or tensor.shape[axis] != self._stream.channels:
            raise RefusedError
        self._stream.tensors[id(tensor)] = tensor, axis
        self._waiting.append((tensor, axis))

    def _add_input(self, node: gs.Node, index: int, axis: int) -> None:
        """Take an input of a node into the stream, or the constant that it is among the places."""
        tensor = node.inputs[index]
        if not isinstance(tensor, gs.Constant):
            self._add(tensor, axis)
            return
        own = walk.is_read_once(tensor) or math.prod(tensor.shape) == self._stream.channels
        if not own or self._nodes.is_fixed(tensor) or not dtypes.is_type(tensor, dtypes.FLOAT):
            raise RefusedError
        if tensor.shape[axis] != self._stream.channels:
            raise RefusedError
        self._stream.places.append(Place(node, index, axis))

    def _write(self, node: gs.Node, tensor: gs.Tensor, axis: int) -> None:
        if self._was_seen(node, "writer"):
            return
        if not self._nodes.may_change(node):
            raise RefusedError
        if node.op in ("MatMul", "Gemm") and axis == -1 and multiplies(node, node.inputs[0]):
            self._add_input(node, 1, -2 if node.attrs.get("transB", 0) else -1)
            self._add_offset(node)
        elif node.op == "Conv" and axis == 1 - len(tensor.shape):
            self._add_input(node, 1, -len(tensor.shape))
            self._add_offset(node)
        elif node.op == "Gather" and isinstance(node.inputs[0], gs.Constant):
            if axis != -1 or node.attrs.get("axis", 0) != 0 or len(node.inputs[0].shape) != 2:
                raise RefusedError
            self._add_input(node, 0, -1)
        else:
            self._pass(node, axis, tensor)

    def _add_offset(self, node: gs.Node) -> None:
        if _has(node, 2):
            if not isinstance(node.inputs[2], gs.Constant):
                raise RefusedError
            self._add_input(node, 2, -1)

    def _read(self, node: gs.Node, index: int, axis: int) -> None:
        tensor = node.inputs[index]
        if node.op in SHAPES or self._was_seen(node, "reader"):
            return
        if not self._nodes.may_change(node):
            raise RefusedError
        if multiplies(node, tensor) and index == 0 and axis == -1:
            self._add_input(node, 1, -1 if node.attrs.get("transB", 0) else -2)
        elif node.op in NORMS and index == 0 and axis == -1 and _is_last(node):
            self._stream.keeps_mean |= node.op == "LayerNormalization"
            self._add_norm(node, 1, 2 if _has(node, 2) else None)
        elif node.op == "Mul" and axis == -1 and is_vector(node.inputs[1 - index], self._stream.channels):
            self._add_norm(node, 1 - index, None)
        elif not self._is_square(node, tensor, axis):
            self._pass(node, axis, tensor)

    def _add_norm(self, node: gs.Node, scale: int, offset: int | None) -> None:
        given = [node.inputs[i] for i in (scale, offset) if i is not None]
        if not all(is_vector(tensor, self._stream.channels) for tensor in given):
            raise RefusedError
        self._stream.norms.append(self._nodes.norm(node, scale, offset))

    def _is_square(self, node: gs.Node, tensor: gs.Tensor, axis: int) -> bool:
        """Return whether a node makes no more of rows than the sums of their squares."""
        if node.op in _SQUARES:
            return axes_of(node) == [axis]
        is_power = node.op == "Pow" and node.inputs[0] is tensor and _number(node.inputs[1]) == 2
        if not is_power and not (node.op == "Mul" and node.inputs[0] is node.inputs[1]):
            return False
        square = node.outputs[0]
        users = [user for user, _ in walk.uses(square)]
        if self._nodes.is_fixed(square) or not users:
            return False
        sums = all(user.op in ("ReduceMean", "ReduceSum") and self._nodes.may_change(user) for user in users)
        return sums and all(axes_of(user) == [axis] for user in users)

    def _pass(self, node: gs.Node, axis: int, tensor: gs.Tensor) -> None:
        """Take in what a node joins, moves, or multiplies by rows."""
        if self._was_seen(node, "passed"):
            return
        if node.op in ("Add", "Sub"):
            for index in range(2):
                self._add_input(node, index, axis)
            self._add(node.outputs[0], axis)
        elif node.op in ("Mul", "Div"):
            data = [i for i in (0, 1) if not self._is_factor(node.inputs[i], axis)]
            if data != [0] and (data != [1] or node.op == "Div"):
                raise RefusedError
            self._add_input(node, data[0], axis)
            self._add(node.outputs[0], axis)
        elif node.op in MOVES:
            self._move(node, axis, tensor)
        else:
            raise RefusedError

    def _is_factor(self, tensor: gs.Tensor, axis: int) -> bool:
        """Return whether a tensor has one number for all channels."""
        return tensor.shape is not None and (len(tensor.shape) < -axis or tensor.shape[axis] == 1)

    def _move(self, node: gs.Node, axis: int, tensor: gs.Tensor) -> None:
        source = node.inputs[0]
        if any(tensor is made for made in node.outputs):
            before = self._moved(node, tensor, axis, source)
        else:
            before = axis
        for index in range(len(node.inputs) if node.op == "Concat" else 1):
            self._add_input(node, index, before)
        for made in node.outputs:
            if made.name:
                self._add(made, self._moved(node, source, before, made))

    def _moved(self, node: gs.Node, tensor: gs.Tensor, axis: int, other: gs.Tensor) -> int:
        found = moved_axis(node, tensor, axis, other)
        if found is None:
            raise RefusedError
        return found


def _is_seed(node: gs.Node) -> bool:
    """Return whether a node is a normalization over the last axis, or the first node of one in parts."""
    if node.op in NORMS:
        return _is_last(node)
    is_square = node.op == "Pow" or (node.op == "Mul" and node.inputs[0] is node.inputs[1])
    readers = [user.op for user, _ in walk.uses(node.outputs[0])] if is_square else []
    return readers == ["ReduceMean"] and isinstance(node.inputs[0], gs.Variable)


def _is_last(node: gs.Node) -> bool:
    axis, shape = node.attrs.get("axis", -1), node.inputs[0].shape
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _has(node: gs.Node, index: int) -> bool:
    return len(node.inputs) > index and not node.inputs[index].is_empty()


def _number(tensor: gs.Tensor) -> float | None:
    is_number = isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1
    return float(np.reshape(tensor.values, ())) if is_number else None
