"""Find lengths that layers compute and later layers work with, such as the duration of synthesized speech.

Such a length is the value of a number computed by layers, which an operator takes as a size: the end of a
Range, the shape of an Expand, the end of a Slice. A rounded number would be another length, and everything
computed from it would have another shape. The layers that compute the number are therefore kept in float.

The number of rows found by NonZero or NonMaxSuppression, or the Shape of these rows, does not count: all
layers of a detector contribute to it. Nor does a length that no later layer uses, such as that of an output
that is cut at its end: the layers before it are the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms import features
from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product

MEASURING = frozenset({"Shape", "Size", "SequenceLength"})
"""Operators whose outputs are lengths of their inputs, whatever the values are."""

_WEIGHT = 1  # input of a layer


@dataclass
class DecidedLengths:
    """Lengths that are the same in every model that keeps some nodes in float.

    ``tensors``: ids of the tensors that hold a length; ``nodes``: by id, the nodes that compute it,
    including those in bodies.
    """

    tensors: set[int] = field(default_factory=set)
    nodes: dict[int, gs.Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Marks:
    """Predicates on the tensors of a graph.

    ``lengths``: the inputs of a node that hold a length; ``is_valued``: the tensor depends on computed
    numbers; ``is_shaped``: its shape does; ``is_stored``: it depends only on constants.
    """

    lengths: Callable[[gs.Node], Iterable[gs.Tensor]]
    is_valued: Callable[[gs.Tensor], bool]
    is_shaped: Callable[[gs.Tensor], bool]
    is_stored: Callable[[gs.Tensor], bool]


def decided_lengths(graph: gs.Graph, marks: Marks) -> DecidedLengths:
    """Return the lengths in the main graph that layers compute and later layers use."""
    decided = DecidedLengths()
    for node in graph.nodes:
        for tensor in filter(marks.is_valued, marks.lengths(node)):
            if id(tensor) in decided.tensors:
                continue
            makers = _makers(tensor)
            if _have_layer(makers.values(), marks) and _goes_on(node, marks):
                decided.tensors.add(id(tensor))
                decided.nodes |= makers
    return decided


def _makers(tensor: gs.Tensor) -> dict[int, gs.Node]:
    """Return by id all nodes on which the values of a tensor depend, beyond its shape."""
    makers: dict[int, gs.Node] = {}
    waiting = [tensor]
    while waiting:
        node = walk.producer(waiting.pop())
        if node is None or id(node) in makers or node.op in MEASURING:
            continue
        inner = [member for body in walk.bodies(node) for member in walk.nodes(body)]
        makers |= {id(member): member for member in (node, *inner)}
        waiting += walk.reads(node)
    return makers


def _have_layer(nodes: Iterable[gs.Node], marks: Marks) -> bool:
    return any(_is_layer(node, marks) for node in nodes)


def _is_layer(node: gs.Node, marks: Marks) -> bool:
    """Return whether a node multiplies by a stored weight."""
    computes = is_dot_product(node) or features.weights_of(node) is not None
    return computes and any(marks.is_stored(tensor) for tensor in node.inputs[: _WEIGHT + 1])


def _goes_on(node: gs.Node, marks: Marks) -> bool:
    """Return whether a layer reads data whose shape depends on the length that a node takes."""

    def _is_shaped(other: gs.Node, _: int) -> bool:
        return any(map(marks.is_shaped, other.outputs))

    return any(
        _is_layer(user, marks) and marks.is_shaped(user.inputs[index])
        for user, index in _uses(node, _is_shaped)
    )


def _uses(node: gs.Node, goes_on: Callable[[gs.Node, int], bool]) -> Iterator[tuple[gs.Node, int]]:
    for tensor in node.outputs:
        yield from walk.uses_beyond(tensor, goes_on)
