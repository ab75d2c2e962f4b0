"""Initializers that change, and nodes that are inserted, under names derived from those that were there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.channels.per_channel import Exponents, PerChannel
from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import become_constant, constant, derived
from transforms.graph.rewire import Insertions

MovedWeights = dict[tuple[int, int, bytes, bytes], tuple[gs.Tensor, gs.Tensor]]
"""By the ``id`` of a weight, and what was done to it: the weight, which keeps its id so, and the result."""

Change = tuple[PerChannel, Exponents]
"""An initializer, and the exponents of two [channels] that its numbers are multiplied by."""


class Edits:
    """Changes of one graph for a rewrite; ``verb`` and its participle are in the names of what is new.

    ``moved_weights``: what was made of weights that several layers read, so that it is stored once.
    """

    def __init__(self, graph: gs.Graph, verb: str, moved_weights: MovedWeights | None = None) -> None:
        """Note the names in use, and what must not change: inputs and outputs."""
        self.graph, self.names, self.insertions = graph, walk.Names(graph), Insertions()
        self.moved_weights: MovedWeights = {} if moved_weights is None else moved_weights
        self.ends, self._verb = walk.ends(graph), verb

    def change(self, node: gs.Node, index: int, compute: Callable[[Any], NDArray[np.float32]]) -> None:
        """Change an initializer that a node reads; the node gets its own copy if others read it too.

        What is made of a weight that takes no memory is computed whenever it is needed.
        """
        old = node.inputs[index]
        values = derived(old._values, compute, np.float32)
        if walk.is_read_once(old) and id(old) not in self.ends:
            become_constant(old, values)
        else:
            node.inputs[index] = constant(self.names.derive(old.name, f"{self._verb}d"), values)

    def variable(self, like: gs.Tensor, suffix: str) -> gs.Variable:
        """Return a new float32 tensor of the shape of another, named after it."""
        return dtypes.variable(self.names.derive(like.name, suffix), dtypes.FLOAT, like)

    def node(self, op: str, tensor: gs.Tensor, other: gs.Constant, verb: str | None = None) -> gs.Node:
        """Return a new node of a tensor and an initializer, still to be inserted."""
        result = self.variable(tensor, f"{verb or self._verb}d")
        return gs.Node(op, self.names.derive(result.name, op.lower()), {}, [tensor, other], [result])

    def multiplied(self, tensor: gs.Tensor, factors: NDArray[np.float32], verb: str | None = None) -> gs.Node:
        """Return a new Mul of a tensor and factors, still to be inserted."""
        name = self.names.derive(tensor.name, verb or self._verb)
        return self.node("Mul", tensor, gs.Constant(name, factors), verb)

    def insert_after(self, tensor: gs.Tensor, nodes: Sequence[gs.Node]) -> None:
        """Insert nodes after the one that makes a tensor, once all edits are done."""
        self.insertions.add(self.graph, walk.producer(tensor), nodes)


def scale(changes: Iterable[Change]) -> None:
    """Multiply initializers that nothing else reads by powers of two, in place, each of them once."""
    exponents_of = dict[int, tuple[gs.Constant, list[Exponents]]]()
    for held, exponents in changes:
        exponents_of.setdefault(id(held.constant), (held.constant, []))[1].append(held.laid(exponents))
    for tensor, laid in exponents_of.values():
        if any(map(np.any, laid)):
            shape = np.broadcast_shapes(tensor.shape, *(one.shape for one in laid))
            become_constant(tensor, derived(tensor._values, partial(scaled, laid), np.float32, shape))


def scaled(exponents: Sequence[Exponents], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an array multiplied by powers of two: the exponents are sums of arrays that broadcast to it."""
    return np.asarray(np.ldexp(values, sum(exponents)), np.float32)
