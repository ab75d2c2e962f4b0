"""Sums of squares up to their root or logarithm: they leave the range of float16 where the numbers do not.

The square of 256 is infinite in float16, and that of 0.0001 is 0. A norm of numbers in between is neither,
nor is the logarithm of a power spectrum.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_SUMS = MOVES | frozenset({"Add", "Sum", "Mul", "Div", "Max", "Clip", "ReduceSum", "Cast"})
_HALVES = (0.5, -0.5)


def roots_of_squares(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of a graph and its bodies that make squares, their sums and the roots or
    logarithms.

    Only constants are added to the squares or multiplied with them.
    """
    constants = Constants(graph)

    def _is_square(node: gs.Node) -> bool:
        if node.domain not in STANDARD_DOMAINS:
            return False
        if node.op == "Mul":
            return node.inputs[0] is node.inputs[1]
        return node.op == "ReduceSumSquare" or (node.op == "Pow" and constants.scalar(node.inputs[1]) == 2)

    def _is_root(node: gs.Node) -> bool:
        if node.domain not in STANDARD_DOMAINS:
            return False
        return node.op in ("Sqrt", "Log") or (
            node.op == "Pow" and constants.scalar(node.inputs[1]) in _HALVES
        )

    found: set[int] = set()
    for node in walk.nodes(graph):
        if _is_root(node):
            way = walk.way_to(node.inputs[:1], walk.is_given, _sums_up, _is_square)
            if way and any(map(_is_square, way.values())):
                found |= way.keys() | {id(node)}
    return found


def _sums_up(node: gs.Node) -> bool:
    """Return whether a node adds numbers, or weighs them as a bank of filters does."""
    if node.op == "MatMul" and node.domain in STANDARD_DOMAINS:
        return any(isinstance(tensor, gs.Constant) for tensor in node.inputs)
    return node.op in _SUMS and node.domain in STANDARD_DOMAINS
