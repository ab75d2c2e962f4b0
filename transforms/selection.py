"""Choosing nodes by name pattern or operator type, with an error for a choice that matches nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import onnx_graphsurgeon as gs

from transforms import walk

Mark = tuple[str, ...]


class Selection:
    """A fixed set of nodes of a graph; ``node in selection`` asks for membership."""

    def __init__(
        self, nodes: Iterable[tuple[gs.Node, frozenset[Mark]]] = (), known: frozenset[Mark] = frozenset()
    ) -> None:
        """Select the nodes given, each with its marks; ``known`` are those of all nodes of the graph."""
        chosen = list(nodes)
        self._nodes = {id(node): node for node, _ in chosen}
        self._marks = frozenset(mark for _, marks in chosen for mark in marks)
        self._known = known

    def follow(self, graph: gs.Graph) -> Selection:
        """Return the selection in a rewritten graph.

        Found are nodes of the same name and operator, and nodes that now make the same tensors, in the same
        body each time: branches of an If often use one name twice. Nodes that came into being, such as a Cast
        of an input or what a newer opset wants beside a node, belong to the selection with what reads them.
        """
        marked = list(_marked(graph))
        found = {id(node) for node, marks in marked if marks & self._marks}
        if found and self._known:
            for node, marks in reversed(marked):
                if not marks & self._known and any(id(u) in found for t in node.outputs for u in t.outputs):
                    found.add(id(node))
        return _choose(marked, found)

    @staticmethod
    def of(graph: gs.Graph, *nodes: gs.Node) -> Selection:
        """Return the selection of nodes of a graph."""
        return _choose(list(_marked(graph)), {id(node) for node in nodes})

    def __or__(self, other: Selection) -> Selection:
        """Return the selection of what is in either, found again by the marks of both."""
        both = Selection(known=self._known | other._known)
        both._nodes = self._nodes | other._nodes
        both._marks = self._marks | other._marks
        return both

    def __contains__(self, node: gs.Node) -> bool:
        return id(node) in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)


def select(graph: gs.Graph, *, names: Sequence[str] = (), op_types: Sequence[str] = ()) -> Selection:
    """Return the nodes whose name matches one of the shell patterns or whose operator is one of the types.

    A node without a name goes by that of what it makes (:func:`label_of`). An If, Loop or Scan that is
    selected brings its bodies along. Raises ValueError naming the pattern or operator type that no node of
    the graph, bodies included, matches.
    """
    everything = list(walk.nodes(graph))
    chosen: list[gs.Node] = []
    for pattern in names:
        found = [node for node in everything if fnmatchcase(label_of(node), pattern)]
        if not found:
            raise ValueError(f"no node name matches '{pattern}'")
        chosen += found
    for op_type in op_types:
        found = [node for node in everything if node.op == op_type]
        if not found:
            present = ", ".join(sorted({node.op for node in everything}))
            raise ValueError(f"no node has operator type '{op_type}'; the model has {present}")
        chosen += found
    return with_bodies(graph, chosen)


def label_of(node: gs.Node) -> str:
    """Return the name by which users know a node: that of what it makes where it has none."""
    return str(node.name or (node.outputs[0].name if node.outputs else ""))


def counterparts(graph: gs.Graph, other: gs.Graph) -> dict[int, list[gs.Node]]:
    """Return the nodes of a rewritten graph that a selection follows each node to, by ``id`` of that."""
    places: dict[Mark, list[gs.Node]] = {}
    for node, marks in _marked(other):
        for mark in marks:
            places.setdefault(mark, []).append(node)
    return {
        id(node): list({id(one): one for mark in sorted(marks) for one in places.get(mark, ())}.values())
        for node, marks in _marked(graph)
    }


def with_bodies(graph: gs.Graph, chosen: Iterable[gs.Node]) -> Selection:
    """Return the selection of nodes of a graph and of all that is in their bodies."""
    return Selection.of(graph, *(node for outer in chosen for node in (outer, *_nodes_in(outer))))


def _choose(marked: Sequence[tuple[gs.Node, frozenset[Mark]]], chosen: Container[int]) -> Selection:
    """Return the selection of the nodes whose ``id`` is among the chosen."""
    known = frozenset(mark for _, marks in marked for mark in marks)
    return Selection(((node, marks) for node, marks in marked if id(node) in chosen), known)


def _nodes_in(node: gs.Node) -> Iterator[gs.Node]:
    return (inner for body in walk.bodies(node) for inner in walk.nodes(body))


def _marked(graph: gs.Graph, place: Mark = ()) -> Iterator[tuple[gs.Node, frozenset[Mark]]]:
    """Yield every node with its marks: where it is, together with its name or with what it makes."""
    for node in graph.nodes:
        outputs = [tensor.name for tensor in node.outputs if tensor.name]
        marks = {(*place, "makes", name) for name in outputs}
        if node.name:
            marks.add((*place, "is", node.op, node.name))
        yield node, frozenset(marks)
        for attribute, body in node.attrs.items():
            if isinstance(body, gs.Graph):
                yield from _marked(body, (*place, "in", *outputs[:1], attribute))
