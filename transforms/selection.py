"""Choosing nodes by name pattern or operator type, with an error for a choice that matches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import onnx_graphsurgeon as gs

from transforms import walk


class Selection:
    """A fixed set of nodes of a graph; ``node in selection`` asks for membership."""

    def __init__(self, nodes: Iterable[gs.Node] = ()) -> None:
        """Select the nodes given, and everything inside the bodies that they hold."""
        self._nodes = {id(inner): inner for node in nodes for inner in _with_bodies(node)}
        self._names = {node.name for node in self._nodes.values() if node.name}
        self._outputs = {
            tensor.name for node in self._nodes.values() for tensor in node.outputs if tensor.name
        }

    def follow(self, graph: gs.Graph) -> Selection:
        """Return the selection in a rewritten graph: nodes of the same name, or making the same tensors."""
        return Selection(
            node
            for node in walk.nodes(graph)
            if node.name in self._names or any(tensor.name in self._outputs for tensor in node.outputs)
        )

    def __contains__(self, node: gs.Node) -> bool:
        return id(node) in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)


def select(graph: gs.Graph, *, names: Sequence[str] = (), op_types: Sequence[str] = ()) -> Selection:
    """Return the nodes whose name matches one of the shell patterns or whose operator is one of the types.

    An If, Loop or Scan that is selected brings its bodies along. Raises ValueError naming the pattern or
    operator type that no node of the graph, bodies included, matches.
    """
    everything = list(walk.nodes(graph))
    chosen: list[gs.Node] = []
    for pattern in names:
        found = [node for node in everything if node.name and fnmatchcase(node.name, pattern)]
        if not found:
            raise ValueError(f"no node name matches '{pattern}'")
        chosen += found
    for op_type in op_types:
        found = [node for node in everything if node.op == op_type]
        if not found:
            present = ", ".join(sorted({node.op for node in everything}))
            raise ValueError(f"no node has operator type '{op_type}'; the model has {present}")
        chosen += found
    return Selection(chosen)


def _with_bodies(node: gs.Node) -> Iterable[gs.Node]:
    yield node
    for body in walk.bodies(node):
        yield from walk.nodes(body)
