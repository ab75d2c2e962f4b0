"""Roots of differences of products: of a discriminant, or of the mean of squares less the square of a mean.

Such a difference is never below zero by what it is made of. Of products that were rounded it is, and its root
is not a number.
"""

from __future__ import annotations

from typing import TypeGuard

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
    for root in walk.nodes(graph):
        if root.op != "Sqrt" or root.domain not in STANDARD_DOMAINS:
            continue
        steps = [root, *walk.steps_to(root.inputs[0], _is_bound)]
        differences = filter(_is_difference, map(walk.producer, walk.computed_inputs(steps[-1])))
        for difference in differences:
            terms = walk.makers(difference.inputs, _is_term)
            if any(term.op in _PRODUCTS for term in terms.values()):
                found |= {*map(id, steps), id(difference), *terms}
    return found


def _is_bound(node: gs.Node) -> bool:
    return node.op in _BOUNDS and node.domain in STANDARD_DOMAINS


def _is_difference(node: gs.Node | None) -> TypeGuard[gs.Node]:
    return node is not None and node.op == "Sub" and node.domain in STANDARD_DOMAINS


def _is_term(node: gs.Node) -> bool:
    is_float = dtypes.is_type(node.outputs[0], dtypes.FLOAT)
    return is_float and node.op in _TERMS and node.domain in STANDARD_DOMAINS
