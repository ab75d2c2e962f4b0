"""Roots of differences of products: of a discriminant, or of the mean of squares less the square of a mean.

Such a difference is never below zero by what it is made of. Of products that were rounded it is, and its root
is not a number.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_BOUNDS = MOVES | frozenset({"Add", "Max", "Clip", "Relu", "Mul", "Div"})
_PRODUCTS = frozenset({"Mul", "Pow"})
_TERMS = MOVES | _PRODUCTS | frozenset({"Add", "Sub", "Neg", "Div", "ReduceSum"})


def differences_of_products(graph: gs.Graph) -> set[int]:
    """Return the ids of the roots in a graph and its bodies, and of what makes the difference below each."""
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.op == "Sqrt" and node.domain in STANDARD_DOMAINS:
            steps, difference = _to_difference(node)
            terms = _terms(difference) if difference is not None else {}
            if any(term.op in _PRODUCTS for term in terms.values()):
                found |= {id(node), *map(id, steps), id(difference), *terms}
    return found


def _to_difference(root: gs.Node) -> tuple[list[gs.Node], gs.Node | None]:
    """Return the nodes between a root and the Sub below it, and that; None if other numbers have a part."""
    steps, node = list[gs.Node](), walk.producer(root.inputs[0])
    while node is not None and node.domain in STANDARD_DOMAINS:
        if node.op == "Sub":
            return steps, node
        data = [one for one in node.inputs if not one.is_empty() and not isinstance(one, gs.Constant)]
        if node.op not in _BOUNDS or len(data) != 1:
            break
        steps.append(node)
        node = walk.producer(data[0])
    return steps, None


def _terms(difference: gs.Node) -> dict[int, gs.Node]:
    """Return the arithmetic that makes what a Sub reads, by id."""
    found: dict[int, gs.Node] = {}
    waiting = list(difference.inputs)
    while waiting:
        tensor = waiting.pop()
        node = walk.producer(tensor)
        if node is None or node.op not in _TERMS or node.domain not in STANDARD_DOMAINS:
            continue
        if id(node) not in found and dtypes.is_type(tensor, dtypes.FLOAT):
            found[id(node)] = node
            waiting += node.inputs
    return found
