"""Choose nodes by name pattern or operator type; a choice that matches nothing is an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from glob import escape

import onnx
import onnx_graphsurgeon as gs

from ops.legal_names import did_you_mean
from transforms.graph import walk

_LONGEST = 2000  # characters of a pattern
_CHARACTER = re.compile(r"\[([^]!])\]")

Mark = tuple[str, ...]

Marked = tuple[gs.Node, frozenset[Mark]]
"""A node, and the marks by which it is recognized after rewrites."""


class NodeSet:
    """Nodes of one graph in its present state; ``node in nodes`` tests membership."""

    def __init__(self, nodes: Iterable[gs.Node] = (), selection: Selection | None = None) -> None:
        """Hold nodes; ``selection`` resolves them again in a rewritten graph."""
        self._nodes = {id(node): node for node in nodes}
        self._selection = selection

    def resolve_in(self, graph: gs.Graph) -> NodeSet:
        """Return the nodes, resolved again by their selection if none of them is still in the graph.

        Raises ValueError for nodes of another graph without a selection.
        """
        if not self._nodes or any(node in self for node in walk.nodes(graph)):
            return self
        if self._selection is None:
            raise ValueError(f"none of the {len(self)} nodes chosen is a node of the graph")
        return self._selection.resolve_in(graph)

    def __or__(self, other: NodeSet) -> NodeSet:
        return NodeSet([*self, *other])

    def __contains__(self, node: object) -> bool:
        return id(node) in self._nodes

    def __iter__(self) -> Iterator[gs.Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)


class Selection:
    """A choice of nodes of a model that survives rewrites, even those that replace all nodes of a graph.

    Its nodes depend on the graph: see :meth:`resolve_in`.
    """

    def __init__(self, graph: gs.Graph | None = None, nodes: Iterable[gs.Node] = ()) -> None:
        """Choose nodes of a graph."""
        self._nodes = {id(node): node for node in nodes}
        marked = list(marked_nodes(graph)) if graph is not None and self._nodes else []
        self._marks = frozenset(mark for node, marks in marked if id(node) in self._nodes for mark in marks)
        self._known = frozenset(mark for _, marks in marked for mark in marks)

    def resolve_in(self, graph: gs.Graph, marked: Sequence[Marked] | None = None) -> NodeSet:
        """Return the chosen nodes of a graph, which may have been rewritten since.

        ``marked``: the :func:`marked_nodes` of the graph, for several selections.

        These are the nodes themselves, nodes with the same name and operator, and nodes that now produce the
        same tensors, each in the same body: branches of an If often reuse a name. New nodes, such as a Cast
        of an input or a helper node of a newer opset, are chosen if their consumers are.
        """
        if not self._nodes:
            return NodeSet((), self)
        marked = list(marked_nodes(graph)) if marked is None else marked
        chosen = {id(node) for node, marks in marked if id(node) in self._nodes or marks & self._marks}
        if chosen and self._known:
            for node, marks in reversed(marked):
                if not marks & self._known and any(id(u) in chosen for t in node.outputs for u in t.outputs):
                    chosen.add(id(node))
        return NodeSet((node for node, _ in marked if id(node) in chosen), self)


Choice = Selection | NodeSet | Callable[[gs.Node], bool] | str | Iterable[str | gs.Node]
"""The values that rewrites accept as ``nodes`` and ``exclude``, which they resolve in their graph first.

A selection, a predicate on nodes, or one or several of: a node, a node's name, a shell pattern of names, an
operator type. A chosen If, Loop or Scan includes its bodies, except with a predicate, which is called for
each node in them.
"""

Exclusion = Choice | None


def resolve(exclude: Exclusion, graph: gs.Graph, nodes: Choice | None = None) -> NodeSet:
    """Return the nodes of a graph that a rewrite must not touch: ``exclude``, and all but ``nodes``.

    Raises ValueError, naming it, for a name or operator type that no node has, and for a node of another
    graph; TypeError for anything that is not a choice.
    """
    excluded = NodeSet() if exclude is None else chosen_nodes(exclude, graph, "exclude")
    if nodes is None:
        return excluded
    chosen = chosen_nodes(nodes, graph, "nodes")
    left = [node for node in walk.nodes(graph) if node in excluded or node not in chosen]
    return NodeSet(left, Selection(graph, left))


def chosen_nodes(choice: Choice, graph: gs.Graph, keyword: str) -> NodeSet:
    """Return the nodes of a graph chosen by the argument ``keyword``; raises as :func:`resolve`."""
    if isinstance(choice, Selection | NodeSet):
        return choice.resolve_in(graph)
    every = list(walk.nodes(graph))
    if callable(choice):
        chosen = NodeSet(node for node in every if choice(node))
        return NodeSet(chosen, Selection(graph, chosen))
    terms = [choice] if isinstance(choice, str | gs.Node) or not isinstance(choice, Iterable) else choice
    chosen = with_bodies(node for term in terms for node in _meant(term, every, keyword))
    return NodeSet(chosen, Selection(graph, chosen))


def _meant(term: str | gs.Node, every: list[gs.Node], keyword: str) -> list[gs.Node]:
    """Return the nodes with a name, pattern or operator type, or the node itself."""
    if not isinstance(term, str | gs.Node):
        legal = "a selection, a function of a node, or nodes, their names, patterns and operator types"
        raise TypeError(f"{keyword} takes {legal}, not {term!r}")
    if isinstance(term, str):
        meant = [node for node in every if node.op == term or matches(label_of(node), term)]
    else:
        meant = [node for node in every if node is term]
    if meant:
        return meant
    if not isinstance(term, str):
        raise ValueError(f"the node '{label_of(term)}' of {keyword} is not a node of the graph")
    near = did_you_mean(term, [*map(label_of, every), *{str(node.op) for node in every}])
    raise ValueError(f"no node name or operator type matches '{term}'{near}")


def select(graph: gs.Graph, *, names: Sequence[str] = (), op_types: Sequence[str] = ()) -> Selection:
    """Return the nodes whose name matches one of the shell patterns or whose operator is one of the types.

    A node without a name is known by its output (:func:`label_of`). A selected If, Loop or Scan includes its
    bodies. Raises ValueError for a pattern or operator type that no node of the graph, including bodies,
    matches.
    """
    everything = list(walk.nodes(graph))
    chosen: list[gs.Node] = []
    for pattern in names:
        matching = [node for node in everything if matches(label_of(node), pattern)]
        if not matching:
            names_here = map(label_of, everything)
            raise ValueError(f"no node name matches '{pattern}'{did_you_mean(pattern, names_here)}")
        chosen += matching
    for op_type in op_types:
        matching = [node for node in everything if node.op == op_type]
        if not matching:
            present = sorted({str(node.op) for node in everything})
            near = did_you_mean(op_type, present)
            raise ValueError(
                f"no node has operator type '{op_type}'{near}; the model has {', '.join(present)}"
            )
        chosen += matching
    return Selection(graph, with_bodies(chosen))


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a shell pattern; a very long pattern only matches itself.

    The time to compile a pattern grows with the square of its length.
    """
    return fnmatchcase(name, pattern) if len(pattern) <= _LONGEST else name == pattern


def literal(pattern: str) -> str | None:
    """Return the only name that a pattern matches, or None if it has wildcards."""
    if len(pattern) > _LONGEST:
        return pattern
    parts = _CHARACTER.split(pattern)  # every second part is a character in brackets
    return None if any(wild in part for part in parts[::2] for wild in "*?[") else "".join(parts)


def label_of(node: gs.Node) -> str:
    """Return the name by which users know a node: its own, or that of its output."""
    return str(node.name or (node.outputs[0].name if node.outputs else ""))


def exactly(name: str) -> str:
    """Return the pattern that only matches this node name, and no operator type."""
    pattern = escape(name)
    return f"[{name[0]}]{name[1:]}" if onnx.defs.has(pattern) else pattern


def counterparts(graph: gs.Graph, other: gs.Graph) -> dict[int, list[gs.Node]]:
    """Map ``id`` of each node to the nodes of a rewritten graph to which its selection resolves."""
    places: dict[Mark, list[gs.Node]] = {}
    for node, marks in marked_nodes(other):
        for mark in marks:
            places.setdefault(mark, []).append(node)
    return {
        id(node): list(
            {
                id(candidate): candidate for mark in sorted(marks) for candidate in places.get(mark, ())
            }.values()
        )
        for node, marks in marked_nodes(graph)
    }


def with_bodies(chosen: Iterable[gs.Node]) -> NodeSet:
    """Return nodes together with all nodes in their bodies."""
    return NodeSet(node for outer in chosen for node in (outer, *_nodes_in(outer)))


def _nodes_in(node: gs.Node) -> Iterator[gs.Node]:
    return (inner for body in walk.bodies(node) for inner in walk.nodes(body))


def marked_nodes(graph: gs.Graph, place: Mark = ()) -> Iterator[Marked]:
    """Yield every node with its marks: its place combined with its name, and with its outputs."""
    for node in graph.nodes:
        outputs = [tensor.name for tensor in node.outputs if tensor.name]
        marks = {(*place, "makes", name) for name in outputs}
        if node.name:
            marks.add((*place, "is", node.op, node.name))
        yield node, frozenset(marks)
        for attribute, body in node.attrs.items():
            if isinstance(body, gs.Graph):
                yield from marked_nodes(body, (*place, "in", *outputs[:1], attribute))
