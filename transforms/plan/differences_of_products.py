"""Differences of products below a root or as a divisor: a discriminant, a determinant, or the mean of squares
less the square of a mean.

Such a difference is small beside its products, and often never below zero by what it is made of. Of products
that were rounded it is anything: its root is not a number, and a quotient by it has any size.
"""

from __future__ import annotations

from typing import TypeGuard

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_ENDS = {"Sqrt": 0, "Reciprocal": 0, "Div": 1}
"""Operators that such a difference reaches, and by which input."""

_BOUNDS = MOVES | frozenset({"Add", "Max", "Clip", "Relu", "Mul", "Div"})
_PRODUCTS = frozenset({"Mul", "Pow"})
_MEANS = MOVES | frozenset({"Sub", "Neg", "Div", "ReduceSum", "CumSum", "AveragePool", "GlobalAveragePool"})
_TERMS = _MEANS | _PRODUCTS | frozenset({"Add"})


def differences_of_products(graph: gs.Graph) -> set[int]:
    """Return the ids of the roots and divisions in a graph and its bodies, and of what makes the difference
    that each takes.

    Both sides of a difference that divides are products, or their means: ratios of areas divide by a sum of
    products less another, which is not small. What is divided is among them if it is such a difference, too.
    """
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.op not in _ENDS or node.domain not in STANDARD_DOMAINS:
            continue
        way = _difference(node.inputs[_ENDS[node.op]], both_sides=node.op != "Sqrt")
        if way:
            found |= way | {id(node)}
            if node.op == "Div":
                found |= _difference(node.inputs[0], both_sides=True)
    return found


def _difference(tensor: gs.Tensor, *, both_sides: bool) -> set[int]:
    """Return the ids of what makes a tensor, if that is a difference of products within bounds, else none."""
    steps = list(walk.steps_to(tensor, _is_bound))
    (total,) = walk.computed_inputs(steps[-1]) if steps else [tensor]
    difference = walk.producer(total)
    if not _is_difference(difference):
        return set()
    terms = walk.makers(difference.inputs, _is_term)
    if both_sides and not all(map(_is_mean_of_products, difference.inputs)):
        return set()
    if not any(term.op in _PRODUCTS for term in terms.values()):
        return set()
    return {*map(id, steps), id(difference), *terms}


def _is_mean_of_products(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is a product of computed numbers, or means of one."""
    makers = walk.makers([tensor], lambda node: node.op in _MEANS | _PRODUCTS and _is_term(node))
    return any(
        node.op == "Pow" or len(walk.computed_inputs(node)) > 1
        for node in makers.values()
        if node.op in _PRODUCTS
    )


def _is_bound(node: gs.Node) -> bool:
    return node.op in _BOUNDS and node.domain in STANDARD_DOMAINS


def _is_difference(node: gs.Node | None) -> TypeGuard[gs.Node]:
    return node is not None and node.op == "Sub" and node.domain in STANDARD_DOMAINS


def _is_term(node: gs.Node) -> bool:
    is_float = dtypes.is_type(node.outputs[0], dtypes.FLOAT)
    return is_float and node.op in _TERMS and node.domain in STANDARD_DOMAINS
