"""Nodes whose float numbers must be exact: sizes, indices, coordinates and angles, which rounding ruins.

* arithmetic on shapes and constants alone;
* integers converted by arithmetic without layer weights to an angle (the operand of Sin or Cos), to integers
  again, or to a comparison: positions of tokens, time steps, indices, lengths; also from numbers that a
  network has rounded, such as lengths of sounds;
* the same for float inputs of the model: if it multiplies them with frequencies for an angle of which it
  takes sine and cosine, as for time steps; or if it computes or selects from them integers that are used as
  indices: tokens, the nearest of points;
* differences between values of one input that are looked up, such as those of neighbours;
* the rules of :mod:`transforms.plan.exact_steps`.

Sin and Cos are periodic, so an angle needs steps far smaller than 1, however large it is: position 1001
becomes 1000 in bfloat16, and most others 0 or the largest number on an 8-bit grid. Most integers above 256
are not bfloat16 numbers. A difference of numbers far from 0 has an error of their magnitude.
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
"""The input of an operator that holds indices."""


def exact_arithmetic(graph: gs.Graph) -> set[int]:
    """Return the ids of these nodes of a graph and its bodies, with those that read the exact numbers."""
    sizes = shape_arithmetic(graph)
    return sizes | positions(graph, sizes) | exact_steps(graph)


def shape_arithmetic(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes that compute from shapes and constants alone."""

    def _joins(node: gs.Node, data: list[gs.Tensor], computed: Set[int]) -> bool:
        if node.op in ("Shape", "Size") and not node.domain:
            return True
        return bool(data) and all(id(t) in computed for t in data) and not any(walk.bodies(node))

    return follow(walk.nodes(graph), _joins)


def without_float_input(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes that compute from integers, booleans and constants alone."""

    def _joins(node: gs.Node, data: list[gs.Tensor], computed: Set[int]) -> bool:
        if is_dot_product(node) or node.op == "Gather" or not data:
            return False
        return all(id(t) in computed or not dtypes.is_type(t, dtypes.FLOAT) for t in data)

    return follow(graph.nodes, _joins)


def follow(nodes: Iterable[gs.Node], joins: Callable[[gs.Node, list[gs.Tensor], Set[int]], bool]) -> set[int]:
    """Return the ids of the nodes that join a group, in the order of the graph.

    ``joins`` takes a node, its inputs that are not constants, and the ids of the group's tensors so far.
    """
    joined, computed = set[int](), set[int]()
    for node in nodes:
        if joins(node, walk.computed_inputs(node), computed):
            joined.add(id(node))
            computed.update(id(t) for t in node.outputs)
    return joined


def positions(graph: gs.Graph, sizes: Set[int]) -> set[int]:
    """Return the ids of nodes that compute angles, integers, comparisons or differences exactly.

    If a node other than such arithmetic, for example a layer or an activation, is on the way to one, no node
    of that way is included; nor is arithmetic on ``sizes``, the ids of its nodes.
    """
    inputs = {id(tensor) for tensor in graph.inputs}
    rounded = {id(node) for node in walk.nodes(graph) if onnx_op(node) in ROUNDINGS}
    starts = [sizes, sizes | rounded] if rounded else [sizes]
    exact: set[int] = set()
    for node in walk.nodes(graph):
        ends = [tensor for tensor in _ends(node) if _is_computed(tensor)]
        for makers in starts if ends else ():
            way = _Way.to(ends, inputs, makers)
            if way is not None and way.is_exact(node):
                exact |= {id(node), *map(id, way.nodes)}
                break
    return exact - sizes


def _ends(node: gs.Node) -> list[gs.Tensor]:
    """Return the inputs of a node that must be exact."""
    op = onnx_op(node)
    is_choice = op in _CHOICES or (op in _CASTS and dtypes.is_discrete(node.outputs[0]))
    if op in _ANGLES or is_choice:
        return node.inputs[:1]
    return node.inputs[:2] if op in _COMPARISONS or op == "Sub" else []


def _is_computed(tensor: gs.Tensor) -> bool:
    """Return whether a tensor may hold float numbers computed by nodes or fed to the model."""
    return not walk.is_given(tensor) and not dtypes.is_discrete(tensor)


@dataclass(frozen=True)
class _Way:
    """The nodes that compute some tensors, the ids of the model's float inputs they depend on, and whether
    they depend on integers.
    """

    nodes: list[gs.Node]
    inputs: set[int]
    from_integers: bool

    @classmethod
    def to(cls, ends: list[gs.Tensor], inputs: Set[int], makers: Set[int]) -> _Way | None:
        """Follow the way back to inputs and integers; None if it has nodes other than arithmetic.

        ``inputs``: ids of the model's inputs; ``makers``: ids of nodes where the way ends at integers.
        """
        makers_by_id = walk.way_to(
            ends,
            lambda tensor: id(tensor) in inputs or not _is_computed(tensor),
            is_arithmetic,
            lambda node: id(node) in makers,
        )
        if makers_by_id is None:
            return None
        arithmetic = [node for key, node in makers_by_id.items() if key not in makers]
        read = [*ends, *(tensor for node in arithmetic for tensor in node.inputs)]
        from_inputs = {id(tensor) for tensor in read if _is_computed(tensor)} & inputs
        integers = any(
            not isinstance(operand, gs.Constant) and dtypes.is_discrete(operand) for operand in read
        )
        return cls([*makers_by_id.values()], from_inputs, integers or len(arithmetic) < len(makers_by_id))

    def is_exact(self, end: gs.Node) -> bool:
        """Return whether rounding on the way would ruin the result of the node at its end."""
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
