"""Groups of nodes that one walk in the order of the graph finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product


def follow(nodes: Iterable[gs.Node], joins: Callable[[gs.Node, list[gs.Tensor], Set[int]], bool]) -> set[int]:
    """Return the ids of the nodes that join a group, in the order of the graph.

    ``joins`` is given a node, its inputs that are not constants, and the ids of what the group makes so far.
    """
    found, made = set[int](), set[int]()
    for node in nodes:
        if joins(node, walk.computed_inputs(node), made):
            found.add(id(node))
            made.update(id(t) for t in node.outputs)
    return found


def without_float_input(graph: gs.Graph) -> set[int]:
    """Return the nodes that make numbers of integers, booleans and constants alone."""

    def _joins(node: gs.Node, data: list[gs.Tensor], made: Set[int]) -> bool:
        if is_dot_product(node) or node.op == "Gather" or not data:
            return False
        return all(id(t) in made or not dtypes.is_type(t, dtypes.FLOAT) for t in data)

    return follow(graph.nodes, _joins)
