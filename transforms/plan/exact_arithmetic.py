"""Nodes whose float numbers have to be exact: a rounded one would be a wrong size, place or angle.

* arithmetic on shapes and constants alone;
* what integers become by arithmetic without weights of a layer, on the way to an angle (the operand of Sin or
  Cos), to integers again, or to a comparison: positions of tokens, steps in time, indices, lengths;
* the same of float inputs of the model: if it multiplies them with frequencies, on the way to an angle of
  which it takes sine and cosine, as it does with steps in time; or makes or chooses integers by them that
  look numbers up: tokens, the nearest of points;
* differences between numbers of one input that it looks up and others: of neighbours;
* what inputs, integers and layers become by such arithmetic on the way to places in an image: grids of
  samples, regions;
* what numbers that a net has rounded become by arithmetic on the way to such an end, as lengths of sounds do;
* the last steps of float numbers to integers (:mod:`transforms.plan.integer_casts`);
* differences of products of which a root is taken, or that divide
  (:mod:`transforms.plan.differences_of_products`), and sums from which an addend is taken off again
  (:mod:`transforms.plan.cancelled_sums`);
* running sums on the way to an angle, with what they sum up (:mod:`transforms.plan.summed_phases`);
* inputs less a stored mean, over a stored deviation (:mod:`transforms.plan.standardised_inputs`).

Sin and Cos repeat themselves, so that an angle needs steps far smaller than 1, however large it is: position
1001 becomes 1000 in bfloat16, and most others 0 or the largest on a grid of 8 bits. Most integers above 256
are not numbers of bfloat16. A difference of numbers that are far from 0 has the error of their size.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, shapes, walk
from transforms.graph.dot_products import is_dot_product, sum_axis
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.plan.cancelled_sums import cancelled_sums
from transforms.plan.differences_of_products import differences_of_products
from transforms.plan.integer_casts import integer_casts
from transforms.plan.node_groups import follow
from transforms.plan.standardised_inputs import standardised_inputs
from transforms.plan.summed_phases import summed_phases

_SHAPE_SOURCES = frozenset({"Shape", "Size"})

_ANGLES = frozenset({"Sin", "Cos"})
_COMPARISONS = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"})
_CHOICES = frozenset({"ArgMax", "ArgMin", "TopK"})
_PLACES = frozenset({"GridSample", "RoiAlign", "MaxRoiPool"})
"""Operators whose second input is places in an image: of samples, or the corners of regions."""

_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
_INDICES = dict.fromkeys((*_LOOKUPS, "ScatterElements", "ScatterND"), (1,)) | {"OneHot": (0,)}
"""Which inputs of an operator are indices."""

_CASTS = frozenset({"Cast", "CastLike"})
_ROUNDINGS = frozenset({"Floor", "Ceil", "Round"})
_ARITHMETIC = (
    MOVES
    | _LOOKUPS
    | frozenset(
        {"Add", "Sub", "Mul", "Div", "Mod", "Pow", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign", "Sum", "Mean"}
        | {"Floor", "Ceil", "Round", "Min", "Max", "Clip", "Where", "Exp", "Log", "Sin", "Cos", "Atan"}
        | {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "CumSum", "Range", "AffineGrid"}
        | {"MaxPool", "GlobalMaxPool", "TopK", "Pad", "Tile"}
        | {"ScatterND", "ScatterElements", "Trilu", "OneHot", "Constant"}
        | _CASTS
    )
)
_PRODUCTS = frozenset({"Mul", "Div", "MatMul", "Gemm", "Einsum"})
_COORDINATES = 8
"""Numbers that a product of coordinates sums up at most: of a place and a direction in space, homogeneous.

A layer sums up more. One is an outer product, as that of positions and the frequencies of their angles.
"""


def exact_arithmetic(graph: gs.Graph) -> set[int]:
    """Return the ids of these nodes of a graph and its bodies, with those that read the exact numbers."""
    sizes = shape_arithmetic(graph)
    return sizes | positions(graph, sizes) | exact_steps(graph)


def exact_steps(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes between numbers of any kind and a result that their rounding would ruin."""
    rules = (integer_casts, differences_of_products, cancelled_sums, summed_phases, standardised_inputs)
    return places(graph).union(*(rule(graph) for rule in rules))


def shape_arithmetic(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes that compute from shapes and constants alone."""

    def _joins(node: gs.Node, data: list[gs.Tensor], made: Set[int]) -> bool:
        if node.op in _SHAPE_SOURCES and not node.domain:
            return True
        return bool(data) and all(id(t) in made for t in data) and not any(walk.bodies(node))

    return follow(walk.nodes(graph), _joins)


def positions(graph: gs.Graph, sizes: Set[int]) -> set[int]:
    """Return the ids of nodes that make angles, integers, comparisons or differences of integers and inputs.

    If anything but such arithmetic is on the way to one, as a layer is or an activation, none of that way is
    among them; nor is arithmetic on ``sizes``, the ids of its nodes.
    """
    inputs = {id(tensor) for tensor in graph.inputs}
    rounded = {id(n) for n in walk.nodes(graph) if n.op in _ROUNDINGS and n.domain in STANDARD_DOMAINS}
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


def places(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes that read places in an image, with the arithmetic that makes these.

    A step of bfloat16 is a pixel from the 128th on, and a quarter of one where coordinates of -1 to 1 stand
    for 128.
    """
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.op in _PLACES and node.domain in STANDARD_DOMAINS:
            found |= {id(node), *walk.makers(node.inputs[1:2], _is_arithmetic)}
    return found


def _ends(node: gs.Node) -> list[gs.Tensor]:
    """Return the inputs of a node that have to be exact."""
    if node.domain not in STANDARD_DOMAINS:
        return []
    is_choice = node.op in _CHOICES or (node.op in _CASTS and dtypes.is_discrete(node.outputs[0]))
    if node.op in _ANGLES or is_choice:
        return node.inputs[:1]
    return node.inputs[:2] if node.op in _COMPARISONS or node.op == "Sub" else []


def _is_computed(tensor: gs.Tensor) -> bool:
    """Return whether a tensor may hold float numbers that nodes or inputs of the model made."""
    return not isinstance(tensor, gs.Constant) and not tensor.is_empty() and not dtypes.is_discrete(tensor)


def _is_integer(tensor: gs.Tensor) -> bool:
    return not isinstance(tensor, gs.Constant) and dtypes.is_discrete(tensor)


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
            _is_arithmetic,
            lambda node: id(node) in makers,
        )
        if found is None:
            return None
        own = [node for key, node in found.items() if key not in makers]
        read = [*ends, *(tensor for node in own for tensor in node.inputs)]
        from_inputs = {id(tensor) for tensor in read if _is_computed(tensor)} & inputs
        return cls([*found.values()], from_inputs, len(own) < len(found) or any(map(_is_integer, read)))

    def is_exact(self, end: gs.Node) -> bool:
        """Return whether rounding on the way would ruin what a node makes at its end."""
        if end.op == "Sub":
            moved = all(node.op in MOVES | _LOOKUPS for node in self.nodes)
            chosen = any(map(_chooses, self.nodes))
            return chosen and moved and len(self.inputs) == 1 and all(map(_is_computed, end.inputs))
        if not self.inputs:
            return self.from_integers
        if end.op in _ANGLES:
            both = {user.op for user in end.inputs[0].outputs} >= _ANGLES
            return both and any(node.op in _PRODUCTS for node in self.nodes)
        return end.op in _CASTS | _CHOICES and _looks_up(end.outputs[-1])


def _chooses(node: gs.Node) -> bool:
    """Return whether a node looks numbers up by indices that are computed."""
    return node.op in _LOOKUPS and not isinstance(node.inputs[1], gs.Constant)


def _looks_up(tensor: gs.Tensor) -> bool:
    """Return whether a tensor becomes an index by arithmetic on integers."""
    waiting, seen = [tensor], set[int]()
    while waiting:
        for node, index in walk.uses(waiting.pop()):
            if index in _INDICES.get(node.op, ()) and node.domain in STANDARD_DOMAINS:
                return True
            if node.op in _ARITHMETIC and id(node) not in seen:
                seen.add(id(node))
                waiting += filter(dtypes.is_discrete, node.outputs)
    return False


def _is_arithmetic(node: gs.Node) -> bool:
    if node.domain not in STANDARD_DOMAINS:
        return False
    if node.op == "Einsum":
        return _is_outer(str(node.attrs.get("equation", "")))
    if is_dot_product(node):
        return node.op in ("MatMul", "Gemm") and _summed(node) <= _COORDINATES
    return node.op in _ARITHMETIC


def _is_outer(equation: str) -> bool:
    """Return whether an Einsum sums nothing up."""
    read, arrow, made = equation.replace(" ", "").partition("->")
    return bool(arrow) and set(read) - {","} <= set(made)


def _summed(node: gs.Node) -> float:
    """Return how many numbers a product sums up, infinity if neither operand tells."""
    for index, tensor in enumerate(node.inputs[:2]):
        shape = shapes.shape_of(tensor)
        size = shape[sum_axis(node, index, len(shape))] if shape else None
        if isinstance(size, int):
            return size
    return float("inf")
