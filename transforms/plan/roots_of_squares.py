"""Means and sums of squares up to their root: they leave the range of float16 where the numbers do not.

The square of 256 is infinite in float16, and that of 0.0001 is 0. A norm of numbers in between is neither.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_SUMS = MOVES | frozenset({"Add", "Sum", "Mul", "Div", "Max", "Clip", "ReduceSum", "Cast"})


def roots_of_squares(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of a graph and its bodies that make squares, their sums and the roots.

    Only constants are added to the squares or multiplied with them.
    """
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.domain in STANDARD_DOMAINS and _is_root(node):
            found |= _squares_of(node)
    return found


def _is_root(node: gs.Node) -> bool:
    return node.op == "Sqrt" or (node.op == "Pow" and abs(_exponent(node)) == 0.5)


def _is_square(node: gs.Node) -> bool:
    if node.op == "Mul":
        return node.inputs[0] is node.inputs[1]
    return node.op == "ReduceSumSquare" or (node.op == "Pow" and _exponent(node) == 2)


def _exponent(node: gs.Node) -> float:
    power = node.inputs[1]
    is_one = isinstance(power, gs.Constant) and np.size(power.values) == 1
    return float(np.reshape(power.values, -1)[0]) if is_one else 0.0


def _squares_of(root: gs.Node) -> set[int]:
    """Return the nodes from squares to a root, none if anything else has a part in it, or there are none."""
    found, waiting, has_squares = {id(root)}, [root.inputs[0]], False
    while waiting:
        tensor = waiting.pop()
        node = walk.producer(tensor)
        if isinstance(tensor, gs.Constant) or (node is not None and id(node) in found):
            continue
        if node is None or node.domain not in STANDARD_DOMAINS:
            return set()
        found.add(id(node))
        if _is_square(node):
            has_squares = True
        elif node.op in _SUMS:
            waiting += [one for one in node.inputs if not one.is_empty()]
        else:
            return set()
    return found if has_squares else set()
