"""Lengths that numbers decide and layers go on with, as durations decide how long a spoken text is.

Such a length is the value of a number that layers make, which an operator takes as a size: the end of a
Range, the shape of an Expand, the end of a Slice. A rounded number is another length, and all that is
computed of it has another shape. The layers that make the number are therefore kept in float.

How many rows are found, as by NonZero or NonMaxSuppression, is no such length, nor is the Shape of these
rows: all layers of a detector have a part in it. Nor is a length with which no layer goes on, as that of an
output that is cut at its end: the layers before it are the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms import features
from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product

MEASURING = frozenset({"Shape", "Size", "SequenceLength"})
"""Operators that make lengths of what they read, whatever its numbers are."""

_WEIGHT = 1  # input of a layer


@dataclass
class DecidedLengths:
    """Lengths that are the same in every model that keeps some nodes in float.

    ``tensors``: ids of the tensors that hold a length; ``nodes``: by id, the nodes that make it, those in
    bodies among them.
    """

    tensors: set[int] = field(default_factory=set)
    nodes: dict[int, gs.Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Marks:
    """What is known of a graph: which tensors hold a length for a node, which follow from numbers, which have
    a shape that numbers decide, and which are made of constants alone.
    """

    lengths: Callable[[gs.Node], Iterable[gs.Tensor]]
    is_valued: Callable[[gs.Tensor], bool]
    is_shaped: Callable[[gs.Tensor], bool]
    is_stored: Callable[[gs.Tensor], bool]


def decided_lengths(graph: gs.Graph, marks: Marks) -> DecidedLengths:
    """Return the lengths that layers decide and other layers go on with, of the main graph."""
    found = DecidedLengths()
    for node in graph.nodes:
        for tensor in filter(marks.is_valued, marks.lengths(node)):
            if id(tensor) in found.tensors:
                continue
            makers = _makers(tensor)
            if _have_layer(makers.values(), marks) and _goes_on(node, marks):
                found.tensors.add(id(tensor))
                found.nodes |= makers
    return found


def _makers(tensor: gs.Tensor) -> dict[int, gs.Node]:
    """Return all nodes that have a part in the numbers of a tensor, not in shapes alone; by id."""
    found: dict[int, gs.Node] = {}
    waiting = [tensor]
    while waiting:
        node = walk.producer(waiting.pop())
        if node is None or id(node) in found or node.op in MEASURING:
            continue
        inner = [one for body in walk.bodies(node) for one in walk.nodes(body)]
        found |= {id(one): one for one in (node, *inner)}
        waiting += walk.reads(node)
    return found


def _have_layer(nodes: Iterable[gs.Node], marks: Marks) -> bool:
    return any(_is_layer(node, marks) for node in nodes)


def _is_layer(node: gs.Node, marks: Marks) -> bool:
    """Return whether a node multiplies by a stored weight."""
    computes = is_dot_product(node) or features.weights_of(node) is not None
    return computes and any(marks.is_stored(tensor) for tensor in node.inputs[: _WEIGHT + 1])


def _goes_on(node: gs.Node, marks: Marks) -> bool:
    """Return whether a layer reads what has its shape of the length that a node takes."""

    def _is_shaped(other: gs.Node, _: int) -> bool:
        return any(map(marks.is_shaped, other.outputs))

    return any(
        _is_layer(user, marks) and marks.is_shaped(user.inputs[index])
        for user, index in _uses(node, _is_shaped)
    )


def _uses(node: gs.Node, goes_on: Callable[[gs.Node, int], bool]) -> Iterator[tuple[gs.Node, int]]:
    for tensor in node.outputs:
        yield from walk.uses_beyond(tensor, goes_on)
