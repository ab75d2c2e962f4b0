"""Nodes by the names and operators that a scheme speaks of them by."""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.selection import NodeSet, label_of, literal, matches, with_bodies

_MERGED = "/MatMulAddFusion"
"""What the optimizer puts after the name of a MatMul that it makes a Gemm of, together with an Add."""


class NamedNodes:
    """The nodes of a graph by the names and operators that each goes by."""

    def __init__(self, graph: gs.Graph) -> None:
        """Read the names."""
        self._nodes = list(walk.nodes(graph))
        self._named: dict[str, list[int]] = {}
        self._of_type: dict[str, list[int]] = {}
        for place, node in enumerate(self._nodes):
            for names, places in ((_labels(node), self._named), (operators(node), self._of_type)):
                for name in names:
                    places.setdefault(name, []).append(place)

    def matching(self, pattern: str) -> NodeSet:
        """Return the nodes whose name matches or whose operator has the name of the pattern, in order."""
        name = literal(pattern)
        names = [name] if name is not None else [one for one in self._named if matches(one, pattern)]
        places = {place for name in names for place in self._named.get(name, ())}
        places.update(self._of_type.get(pattern, ()))
        return with_bodies(self._nodes[place] for place in sorted(places))


def named(graph: gs.Graph, names: Collection[str]) -> NodeSet:
    """Return the nodes of a graph that entries of ``layers`` speak of which match these names alone."""
    return with_bodies(node for node in walk.nodes(graph) if not _labels(node).isdisjoint(names))


def _labels(node: gs.Node) -> set[str]:
    """Return the names that a node goes by: a Gemm made of a MatMul has that of the MatMul too."""
    return {label_of(node), node.name.removesuffix(_MERGED)} if _was_merged(node) else {label_of(node)}


def operators(node: gs.Node) -> frozenset[str]:
    """Return the operator types that a node goes by: a Gemm that was a MatMul and an Add is MatMul too."""
    return frozenset({node.op, "MatMul"} if _was_merged(node) else {node.op})


def _was_merged(node: gs.Node) -> bool:
    return node.op == "Gemm" and node.name.endswith(_MERGED)
