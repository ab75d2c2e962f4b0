"""The norms of a residual stream, and the layers that can take in what these multiply with and add."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.graph import dtypes, walk
from transforms.graph.left_operands import multiplies
from transforms.graph.moved_axis import MOVES, moved_axis
from transforms.graph.rewire import STANDARD_DOMAINS

_RMS = frozenset({"RMSNormalization", "SimplifiedLayerNormalization"})
NORMS = _RMS | {"LayerNormalization"}
SHAPES = frozenset({"Shape", "Size"})
_MOST = 8.0  # what may be added to normalized numbers


class RefusedError(Exception):
    """What reads or writes a stream and cannot take a rotation in."""


@dataclass(frozen=True)
class Place:
    """The input of a node that holds a constant, and the axis of the channels, counted from the end."""

    node: gs.Node
    index: int
    axis: int


@dataclass(frozen=True)
class Norm:
    """A node that multiplies channels with a constant of their own, ``scale`` the index of that input.

    ``offset`` is the index of what it adds, if anything; ``readers``: the layers on what it makes, ``biases``
    the places of theirs if these are to take what it adds; otherwise the norm adds it before it multiplies.
    """

    node: gs.Node
    scale: int
    offset: int | None
    readers: tuple[gs.Node, ...]
    biases: tuple[Place, ...] = ()


class StreamNodes:
    """Says which nodes of a graph may change with a stream, and what of its norms goes into layers."""

    def __init__(self, graph: gs.Graph, exclude: Container[gs.Node]) -> None:
        """Note what must not change in the graph, and nodes that must not."""
        self._exclude = exclude
        self._fixed = walk.ends(graph)
        self._members = {id(node) for node in graph.nodes}

    def may_change(self, node: gs.Node) -> bool:
        """Return whether a node is of the graph, of ONNX's operators, and not excluded."""
        known = node.domain in STANDARD_DOMAINS
        return id(node) in self._members and node not in self._exclude and known

    def is_fixed(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor is an input or an output of a graph."""
        return id(tensor) in self._fixed

    def norm(self, node: gs.Node, scale: int, offset: int | None) -> Norm:
        """Return a norm with its readers; RefusedError if what it adds finds no place."""
        readers = tuple(self._readers(node.outputs[0]))
        biases: tuple[Place, ...] = ()
        if offset is not None and np.any(node.inputs[offset].values):
            found = [self._bias(reader) for reader in readers]
            biases = tuple(place for place in found if place is not None)
            if len(biases) < len(readers):
                biases = ()
                if not _is_quotient(node.inputs[offset].values, node.inputs[scale].values):
                    raise RefusedError
        return Norm(node, scale, offset, readers, biases)

    def _bias(self, node: gs.Node) -> Place | None:
        """Return the constant for each output that a layer, or the one node after it, adds."""
        if node.op == "Gemm":
            place = Place(node, 2, -1) if len(node.inputs) > 2 else None
        else:
            users = walk.uses(node.outputs[0])
            adds = len(users) == 1 and users[0][0].op == "Add" and self.may_change(users[0][0])
            place = Place(users[0][0], 1 - users[0][1], -1) if adds else None
        if place is None or self.is_fixed(node.outputs[0]):
            return None
        tensor, outputs = place.node.inputs[place.index], node.inputs[1].shape
        count = outputs[-2 if node.attrs.get("transB", 0) else -1]
        is_float = isinstance(tensor, gs.Constant) and dtypes.is_type(tensor, dtypes.FLOAT)
        whole = is_float and math.prod(tensor.shape) == count and tensor.shape[-1] == count
        return place if whole and node.attrs.get("alpha", 1.0) == node.attrs.get("beta", 1.0) == 1 else None

    def _readers(self, tensor: gs.Tensor) -> list[gs.Node]:
        """Return the layers on what a norm makes, moved or not; nothing else may read it."""
        found, waiting = [], self._uses(tensor)
        while waiting:
            node, index, tensor = waiting.pop()
            if node.op in SHAPES:
                continue
            if not self.may_change(node) or index:
                raise RefusedError
            if multiplies(node, tensor) and walk.is_read_once(node.inputs[1]):
                if self.is_fixed(node.inputs[1]):
                    raise RefusedError
                found.append(node)
            elif node.op in MOVES - {"Concat"}:
                if any(made.name and moved_axis(node, tensor, -1, made) != -1 for made in node.outputs):
                    raise RefusedError
                waiting += [use for made in reversed(node.outputs) for use in self._uses(made)]
            else:
                raise RefusedError
        return found

    def _uses(self, tensor: gs.Tensor) -> list[tuple[gs.Node, int, gs.Tensor]]:
        """Return the uses of a tensor, the last first; RefusedError if it is fixed."""
        if self.is_fixed(tensor):
            raise RefusedError
        return [(node, index, tensor) for node, index in reversed(walk.uses(tensor))]


def is_vector(tensor: gs.Tensor, channels: int) -> bool:
    """Return whether a tensor holds a constant for each channel."""
    is_float = isinstance(tensor, gs.Constant) and dtypes.is_type(tensor, dtypes.FLOAT)
    return is_float and tuple(tensor.shape) == (channels,)


def _is_quotient(offset: Float32Array, scale: Float32Array) -> bool:
    """Return whether offsets, divided by scales, are not much larger than normalized numbers."""
    return bool(scale.all()) and float(np.abs(offset / scale).max()) <= _MOST
