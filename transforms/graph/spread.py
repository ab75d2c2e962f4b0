"""What a value may become, and what may become one, along the nodes that hand it on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.slots import passed_on

Carries = Callable[[gs.Node, int], bool]
"""Whether what a node reads as an input is handed on to what it makes."""


class Spread:
    """The ways of values through a graph and its bodies: into these, out of them and from round to round."""

    def __init__(self, graph: gs.Graph, carries: Carries) -> None:
        """Find how values pass through control flow; ``carries`` says it of all other nodes."""
        self._carries = carries
        self._after: dict[int, list[gs.Tensor]] = {}
        self._before: dict[int, list[gs.Tensor]] = {}
        for node in walk.nodes(graph):
            for given, read in passed_on(node):
                self._after.setdefault(id(given), []).append(read)
                self._before.setdefault(id(read), []).append(given)

    def onwards(self, sources: Iterable[gs.Tensor]) -> dict[int, gs.Tensor]:
        """Return the tensors, by id, that sources are handed on to, themselves included."""
        return _reach(sources, self._next)

    def backwards(self, ends: Iterable[gs.Tensor]) -> dict[int, gs.Tensor]:
        """Return the tensors, by id, that are handed on to the ends, themselves included."""
        return _reach(ends, self._last)

    def _next(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        carried = (node.outputs for node, index in walk.uses(tensor) if self._carries(node, index))
        return [*self._after.get(id(tensor), ()), *(made for outputs in carried for made in outputs)]

    def _last(self, tensor: gs.Tensor) -> list[gs.Tensor]:
        node = walk.producer(tensor)
        read = enumerate(node.inputs) if node is not None else ()
        carried = [one for index, one in read if node is not None and self._carries(node, index)]
        return [*self._before.get(id(tensor), ()), *carried]


def _reach(
    starts: Iterable[gs.Tensor], others: Callable[[gs.Tensor], Iterable[gs.Tensor]]
) -> dict[int, gs.Tensor]:
    found: dict[int, gs.Tensor] = {}
    waiting = list(starts)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in found:
            found[id(tensor)] = tensor
            waiting += others(tensor)
    return found
