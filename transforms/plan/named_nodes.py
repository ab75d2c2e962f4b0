"""Find nodes by the names and operators in a scheme."""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.selection import NodeSet, label_of, literal, matches, with_bodies

_MERGED = "/MatMulAddFusion"
"""Suffix that the optimizer adds to the name of a MatMul when it fuses it with an Add into a Gemm."""


class NamedNodes:
    """The nodes of a graph by name and operator."""

    def __init__(self, graph: gs.Graph) -> None:
        """Index the nodes."""
        self._nodes = list(walk.nodes(graph))
        self._named: dict[str, list[int]] = {}
        self._of_type: dict[str, list[int]] = {}
        for place, node in enumerate(self._nodes):
            for names, places in ((_labels(node), self._named), (operators(node), self._of_type)):
                for name in names:
                    places.setdefault(name, []).append(place)

    def matching(self, pattern: str) -> NodeSet:
        """Return the nodes whose name matches the pattern or whose operator it names, in order."""
        name = literal(pattern)
        names = (
            [name]
            if name is not None
            else [known_name for known_name in self._named if matches(known_name, pattern)]
        )
        places = {place for name in names for place in self._named.get(name, ())}
        places.update(self._of_type.get(pattern, ()))
        return with_bodies(self._nodes[place] for place in sorted(places))


def named(graph: gs.Graph, names: Collection[str]) -> NodeSet:
    """Return the nodes of a graph with one of these names, including the nodes of their bodies."""
    return with_bodies(node for node in walk.nodes(graph) if not _labels(node).isdisjoint(names))


def _labels(node: gs.Node) -> set[str]:
    """Return the names of a node: a Gemm fused from a MatMul also has the MatMul's name."""
    return {label_of(node), node.name.removesuffix(_MERGED)} if _was_merged(node) else {label_of(node)}


def operators(node: gs.Node) -> frozenset[str]:
    """Return the operator types of a node: a Gemm fused from MatMul and Add is also a MatMul."""
    return frozenset({node.op, "MatMul"} if _was_merged(node) else {node.op})


def _was_merged(node: gs.Node) -> bool:
    return node.op == "Gemm" and node.name.endswith(_MERGED)
