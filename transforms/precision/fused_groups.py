"""The parts of a model of which each can stay float while the others become BF16.

A part is what the conversion makes one piece of: a node, or nodes that are fused, such as a convolution and
the BatchNorm after it. It is told by nodes of the model as it was loaded, for these are what a user names,
and holds the nodes that compute it once the model is prepared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.selection import NodeSet, counterparts, label_of
from transforms.plan.exact_arithmetic import exact_arithmetic, follow, shape_arithmetic

_COPIES = frozenset({"Identity", "Dropout"})
_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16)


@dataclass
class FusedGroup:
    """A part: the names of its nodes as loaded, those of them whose results are left, its prepared nodes."""

    names: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    nodes: list[gs.Node] = field(default_factory=list)


def find_fused_groups(
    loaded: gs.Graph, prepared: gs.Graph, kept_loaded: NodeSet, kept_prepared: NodeSet
) -> list[FusedGroup]:
    """Return the parts of a model in the order of its nodes; what is kept float anyway is in none.

    Nodes with bodies are in none, those in the bodies are. Nodes of one name are in one part: a name chooses
    them together. ``prepared`` is what became of ``loaded``.
    """
    nodes = list(_candidates(loaded, kept_loaded, shape_arithmetic(loaded)))
    left = {t.name for node in walk.nodes(prepared) for t in node.outputs if _is_float(t)}
    groups = _Groups(nodes)
    _join_fused(nodes, left, groups)
    first: dict[str, gs.Node] = {}
    for node in nodes:
        groups.join(node, first.setdefault(label_of(node), node))
    found = _candidates(prepared, kept_prepared, exact_arithmetic(prepared))
    open_nodes = {id(node): node for node in found if _is_typed(node)}
    matches = counterparts(loaded, prepared)
    owners: dict[int, gs.Node] = {}
    for node in nodes:
        for match in matches[id(node)]:
            if id(match) in open_nodes:
                groups.join(node, owners.setdefault(id(match), node))
    roots = {key: groups.root(node) for key, node in owners.items()}
    _adopt(prepared, open_nodes, roots)
    parts: dict[int, FusedGroup] = {}
    for node in nodes:
        part, name = parts.setdefault(groups.root(node), FusedGroup()), label_of(node)
        is_end = any(tensor.name in left for tensor in node.outputs)
        for names in (part.names, part.ends)[: 1 + is_end]:
            if name not in names:
                names.append(name)
    for key, root in roots.items():
        parts[root].nodes.append(open_nodes[key])
    return [part for part in parts.values() if part.nodes]


def _candidates(graph: gs.Graph, kept: NodeSet, exact: Set[int]) -> Iterator[gs.Node]:
    """Yield the nodes that compute on floats, not on constants alone; ``exact``: ids of those left out."""

    def _is_fixed(node: gs.Node, data: list[gs.Tensor], made: Set[int]) -> bool:
        return any(not t.is_empty() for t in node.inputs) and all(id(t) in made for t in data)

    fixed = follow(walk.nodes(graph), _is_fixed)
    for node in walk.nodes(graph):
        floats = any(_is_float(tensor) for tensor in (*node.inputs, *node.outputs))
        is_unquantized_float = node not in kept and id(node) not in exact and id(node) not in fixed
        if floats and is_unquantized_float and label_of(node) and not any(walk.bodies(node)):
            yield node


def _is_float(tensor: gs.Tensor) -> bool:
    return dtypes.element_type(tensor) in _FLOATS


def _is_typed(node: gs.Node) -> bool:
    return all(dtypes.element_type(tensor) is not None for tensor in node.outputs if not tensor.is_empty())


class _Groups:
    """Disjoint sets of nodes, joined step by step; the first node in the order given stands for its set."""

    def __init__(self, nodes: Iterable[gs.Node]) -> None:
        self._nodes = list(nodes)
        self._places = {id(node): i for i, node in enumerate(self._nodes)}
        self._above = list(range(len(self._nodes)))

    def __contains__(self, node: gs.Node) -> bool:
        return id(node) in self._places

    def root(self, node: gs.Node) -> int:
        """Return the number of the node's set."""
        place = self._places[id(node)]
        while self._above[place] != place:
            self._above[place] = self._above[self._above[place]]
            place = self._above[place]
        return place

    def join(self, a: gs.Node, b: gs.Node) -> None:
        """Make one set of those of two nodes."""
        first, second = sorted((self.root(a), self.root(b)))
        self._above[second] = first


def _join_fused(nodes: Iterable[gs.Node], left: Set[str], groups: _Groups) -> None:
    """Join what hands one another tensors that are gone from the prepared model."""
    for node in nodes:
        gone = (t for t in node.outputs if _is_float(t) and t.name not in left and node.op not in _COPIES)
        for user in (user for tensor in gone for user in tensor.outputs):
            if user in groups and user.op not in _COPIES:
                groups.join(node, user)


def _adopt(prepared: gs.Graph, open_nodes: dict[int, gs.Node], roots: dict[int, int]) -> None:
    """Count new nodes, such as the product that several were merged into, to the part that reads them."""
    for inner in walk.graphs(prepared):
        for node in reversed(inner.nodes):
            if id(node) in open_nodes and id(node) not in roots:
                users = {roots.get(id(user), -1) for tensor in node.outputs for user in tensor.outputs}
                if len(users) == 1 and -1 not in users:
                    roots[id(node)] = users.pop()
