"""Nodes whose float numbers have to be exact: rounded, it is a wrong size, index, coordinate or angle.

* arithmetic on shapes and constants alone;
* what integers become by arithmetic without weights of a layer, on the way to an angle (the operand of Sin or
  Cos), to integers again, or to a comparison: positions of tokens, time steps, indices, lengths; also from
  numbers that a net has rounded, as lengths of sounds are;
* the same of float inputs of the model: if it multiplies them with frequencies, on the way to an angle of
  which it takes sine and cosine, as it does with time steps; or makes or selects integers by them that
  look numbers up: tokens, the nearest of points;
* differences between numbers of one input that it looks up and others: of neighbours;
* the rules of :mod:`transforms.plan.exact_steps`.

Sin and Cos repeat themselves, so that an angle needs steps far smaller than 1, however large it is: position
1001 becomes 1000 in bfloat16, and most others 0 or the largest on a grid of 8 bits. Most integers above 256
are not numbers of bfloat16. A difference of numbers that are far from 0 has the error of their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import onnx_op
from transforms.plan.exact_steps import ARITHMETIC, LOOKUPS, ROUNDINGS, exact_steps, is_arithmetic

_ANGLES = frozenset({"Sin", "Cos"})
_COMPARISONS = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"})
_CHOICES = frozenset({"ArgMax", "ArgMin", "TopK"})
_CASTS = frozenset({"Cast", "CastLike"})
_PRODUCTS = frozenset({"Mul", "Div", "MatMul", "Gemm", "Einsum"})
_INDICES = dict.fromkeys((*LOOKUPS, "ScatterElements", "ScatterND"), 1) | {"OneHot": 0}
"""Which input of an operator is indices."""


def exact_arithmetic(graph: gs.Graph) -> set[int]:
    """Return the ids of these nodes of a graph and its bodies, with those that read the exact numbers."""
    sizes = shape_arithmetic(graph)
    return sizes | positions(graph, sizes) | exact_steps(graph)


def shape_arithmetic(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes that compute from shapes and constants alone."""

    def _joins(node: gs.Node, data: list[gs.Tensor], made: Set[int]) -> bool:
        if node.op in ("Shape", "Size") and not node.domain:
            return True
        return bool(data) and all(id(t) in made for t in data) and not any(walk.bodies(node))

    return follow(walk.nodes(graph), _joins)


def without_float_input(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes that make numbers of integers, booleans and constants alone."""

    def _joins(node: gs.Node, data: list[gs.Tensor], made: Set[int]) -> bool:
        if is_dot_product(node) or node.op == "Gather" or not data:
            return False
        return all(id(t) in made or not dtypes.is_type(t, dtypes.FLOAT) for t in data)

    return follow(graph.nodes, _joins)


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


def positions(graph: gs.Graph, sizes: Set[int]) -> set[int]:
    """Return the ids of nodes that make angles, integers, comparisons or differences of integers and inputs.

    If anything but such arithmetic is on the way to one, as a layer is or an activation, none of that way is
    among them; nor is arithmetic on ``sizes``, the ids of its nodes.
    """
    inputs = {id(tensor) for tensor in graph.inputs}
    rounded = {id(node) for node in walk.nodes(graph) if onnx_op(node) in ROUNDINGS}
    starts = [sizes, sizes | rounded] if rounded else [sizes]
    found: set[int] = set()
    for node in walk.nodes(graph):
        ends = [tensor for tensor in _ends(node) if _is_computed(tensor)]
        for makers in starts if ends else ():
            way = _Way.to(ends, inputs, makers)
            if way is not None and way.is_exact(node):
                found |= {id(node), *map(id, way.nodes)}
                break
    return found - sizes


def _ends(node: gs.Node) -> list[gs.Tensor]:
    """Return the inputs of a node that have to be exact."""
    op = onnx_op(node)
    is_choice = op in _CHOICES or (op in _CASTS and dtypes.is_discrete(node.outputs[0]))
    if op in _ANGLES or is_choice:
        return node.inputs[:1]
    return node.inputs[:2] if op in _COMPARISONS or op == "Sub" else []


def _is_computed(tensor: gs.Tensor) -> bool:
    """Return whether a tensor may hold float numbers that nodes or inputs of the model made."""
    return not walk.is_given(tensor) and not dtypes.is_discrete(tensor)


@dataclass(frozen=True)
class _Way:
    """The nodes that make some tensors, the float inputs of the model that have a part in them, by id, and
    whether integers have.
    """

    nodes: list[gs.Node]
    inputs: set[int]
    from_integers: bool

    @classmethod
    def to(cls, ends: list[gs.Tensor], inputs: Set[int], makers: Set[int]) -> _Way | None:
        """Follow the way back to inputs and integers, None if anything but arithmetic is on it.

        ``inputs``: ids of the inputs of the model; ``makers``: of nodes that make integers, of whatever.
        """
        found = walk.way_to(
            ends,
            lambda tensor: id(tensor) in inputs or not _is_computed(tensor),
            is_arithmetic,
            lambda node: id(node) in makers,
        )
        if found is None:
            return None
        own = [node for key, node in found.items() if key not in makers]
        read = [*ends, *(tensor for node in own for tensor in node.inputs)]
        from_inputs = {id(tensor) for tensor in read if _is_computed(tensor)} & inputs
        integers = any(not isinstance(one, gs.Constant) and dtypes.is_discrete(one) for one in read)
        return cls([*found.values()], from_inputs, integers or len(own) < len(found))

    def is_exact(self, end: gs.Node) -> bool:
        """Return whether rounding on the way would ruin what a node makes at its end."""
        if end.op == "Sub":
            moved = all(node.op in MOVES | LOOKUPS for node in self.nodes)
            looked_up = any(n.op in LOOKUPS and not isinstance(n.inputs[1], gs.Constant) for n in self.nodes)
            return looked_up and moved and len(self.inputs) == 1 and all(map(_is_computed, end.inputs))
        if not self.inputs:
            return self.from_integers
        if end.op in _ANGLES:
            both = {user.op for user in end.inputs[0].outputs} >= _ANGLES
            return both and any(node.op in _PRODUCTS for node in self.nodes)
        return end.op in _CASTS | _CHOICES and _looks_up(end.outputs[-1])


def _looks_up(tensor: gs.Tensor) -> bool:
    """Return whether a tensor becomes an index by arithmetic on integers."""

    def _goes_on(node: gs.Node, _: int) -> bool:
        return node.op in ARITHMETIC and any(map(dtypes.is_discrete, node.outputs))

    uses = walk.uses_beyond(tensor, _goes_on)
    return any(_INDICES.get(onnx_op(node)) == index for node, index in uses)
