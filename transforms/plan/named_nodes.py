"""Nodes by the names and operators that a scheme speaks of them by."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.selection import NodeSet, label_of, matches, with_bodies

_MERGED = "/MatMulAddFusion"
"""What the optimizer puts after the name of a MatMul that it makes a Gemm of, together with an Add."""

WithNames = tuple[gs.Node, frozenset[str], set[str]]
"""A node, the operators and the names that it goes by."""


def with_names(graph: gs.Graph) -> list[WithNames]:
    """Return the nodes of a graph with what each goes by."""
    return [(node, operators(node), _labels(node)) for node in walk.nodes(graph)]


def matching_nodes(nodes: Iterable[WithNames], pattern: str) -> NodeSet:
    """Return the nodes whose name matches or whose operator has the name of the pattern."""
    return with_bodies(
        node
        for node, types, labels in nodes
        if pattern in types or any(matches(label, pattern) for label in labels)
    )


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
