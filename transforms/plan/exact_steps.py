"""Float values whose rounding would ruin a result a few steps later: one table of rules.

A rule (a row of :data:`RULES`) names the operators at which it starts and finds, backwards from each, the
nodes that must compute in float32 with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product, sum_axis
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import onnx_op

ROUNDINGS = frozenset({"Floor", "Ceil", "Round"})
LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
_CHAIN = ROUNDINGS | {"Add", "Sub", "Mul", "Div", "Clip", "Min", "Max"}
_VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_PHASES = (
    MOVES
    | _CHAIN
    | {"Mod", "Neg", "Abs", "Sum", "Where", "Cast", "Pad", "Tile", "Resize", "Upsample", "CumSum"}
)
_BOUNDS = MOVES | {"Add", "Max", "Clip", "Relu", "Mul", "Div"}
_PRODUCTS = frozenset({"Mul", "Pow"})
_MEANS = MOVES | {"Sub", "Neg", "Div", "ReduceSum", "CumSum", "AveragePool", "GlobalAveragePool"}
_TERMS = _MEANS | _PRODUCTS | {"Add"}
ARITHMETIC = (
    MOVES
    | LOOKUPS
    | _CHAIN
    | frozenset({"Mod", "Pow", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign", "Sum", "Mean", "Where", "Exp"})
    | {"Log", "Sin", "Cos", "Atan", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"}
    | {"CumSum", "Range", "AffineGrid", "MaxPool", "GlobalMaxPool", "TopK", "Pad", "Tile", "ScatterND"}
    | {"ScatterElements", "Trilu", "OneHot", "Constant", "Cast", "CastLike"}
)
_COORDINATES = 8
"""Largest number of terms in a product of coordinates: a place and a direction in space, homogeneous.

A layer sums more terms. A single term is an outer product, as of positions and the frequencies of angles.
"""

_DEVIATIONS = 8
"""Ratio of mean to deviation from which more than three bits of an input cancel. Pixels have 2 or 3."""


Rule = tuple[Mapping[str, int], Callable[[gs.Node, gs.Tensor], Iterable[int] | None]]
"""The operators at which a rule starts, with the input that must be exact; and a function that returns, for
such a node and that input, the ids of earlier nodes that must be exact with it, or None where the rule does
not apply.
"""


def exact_steps(graph: gs.Graph, rules: Iterable[Rule] | None = None) -> set[int]:
    """Return the ids of nodes of a graph and its bodies whose rounding would ruin a result, by all rules."""
    exact: set[int] = set()
    chosen = tuple(RULES.values() if rules is None else rules)
    for node in walk.nodes(graph):
        for ends, nodes_before in chosen:
            index = ends.get(onnx_op(node), len(node.inputs))
            before = nodes_before(node, node.inputs[index]) if index < len(node.inputs) else None
            if before is not None:
                exact |= {id(node), *before}
    return exact


def is_arithmetic(node: gs.Node) -> bool:
    """Return whether a node computes without weights of a layer."""
    if onnx_op(node) == "Einsum":
        input_indices, arrow, output_indices = (
            str(node.attrs.get("equation", "")).replace(" ", "").partition("->")
        )
        return bool(arrow) and set(input_indices) - {","} <= set(output_indices)  # no index is summed
    if is_dot_product(node):
        return node.op in ("MatMul", "Gemm") and _summed(node) <= _COORDINATES
    return onnx_op(node) in ARITHMETIC


def _summed(node: gs.Node) -> float:
    """Return how many numbers a product sums, infinity if neither operand has a known size."""
    for index, tensor in enumerate(node.inputs[:2]):
        size = tensor.shape[sum_axis(node, index, len(tensor.shape))] if tensor.shape else None
        if isinstance(size, int) and size >= 0:  # a known size, not a name
            return size
    return float("inf")


def _coordinates(_: gs.Node, tensor: gs.Tensor) -> Iterable[int]:
    """A step of bfloat16 is a pixel from the 128th on, or a quarter of one if -1 to 1 stands for 128."""
    return walk.makers([tensor], is_arithmetic)


def _running_sum(_: gs.Node, tensor: gs.Tensor) -> Iterable[int] | None:
    """The phase of a sound, in the thousands, must be exact to a fraction of a turn; errors accumulate."""
    way = walk.makers([tensor], lambda node: onnx_op(node) in _PHASES)
    return way if any(node.op == "CumSum" for node in way.values()) else None


def _steps_to_integer(cast: gs.Node, tensor: gs.Tensor) -> Iterable[int] | None:
    """32767 is 32768 in bfloat16 and float16, which a Cast to int16 turns into the lowest number."""
    result = cast.outputs[0]
    without_steps = (onnx.TensorProto.BOOL, onnx.TensorProto.STRING)
    if not dtypes.is_discrete(result) or dtypes.element_type(result) in without_steps:
        return None
    steps = list(walk.steps_to(tensor, lambda node: _is_float(node, _CHAIN | _VIEWS)))
    return map(id, steps) if any(step.op in _CHAIN for step in steps) else None


def _sums_with_addend(sub: gs.Node, total: gs.Tensor) -> Iterable[int] | None:
    """Return the Adds by which the subtrahend entered a total, as optical flow enters a grid.

    The difference is small; its rounding error has the magnitude of the grid.
    """
    adds = walk.makers([total], lambda node: onnx_op(node) == "Add")
    uses = walk.uses_beyond(sub.inputs[1], lambda node, _: id(node) in adds) if adds else ()
    return {id(node) for node, _ in uses if id(node) in adds} or None


def _difference_and_dividend(node: gs.Node, tensor: gs.Tensor) -> Iterable[int] | None:
    """Return the nodes of the difference that a node reads, and of its dividend if that is one, too.

    A discriminant or a variance is small beside its products, and negative if these are rounded.
    """
    way = _difference(tensor, both_sides=node.op != "Sqrt")
    if way and node.op == "Div":
        way |= _difference(node.inputs[0], both_sides=True)
    return way or None


def _difference(tensor: gs.Tensor, *, both_sides: bool) -> set[int]:
    """Return the ids of the nodes of a tensor that is a bounded difference of products, else none.

    A divisor must have products, or their means, on ``both_sides``: ratios of areas divide by a sum of
    products minus another one, which is not small.
    """
    steps = list(walk.steps_to(tensor, lambda node: onnx_op(node) in _BOUNDS))
    (total,) = walk.computed_inputs(steps[-1]) if steps else [tensor]
    difference = walk.producer(total)
    if difference is None or onnx_op(difference) != "Sub":
        return set()
    terms = walk.makers(difference.inputs, lambda node: _is_float(node, _TERMS))
    is_whole = not both_sides or all(map(_is_mean_of_products, difference.inputs))
    if not is_whole or not any(term.op in _PRODUCTS for term in terms.values()):
        return set()
    return {*map(id, steps), id(difference), *terms}


def _is_mean_of_products(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is a product of computed numbers, or means of one."""
    makers = walk.makers([tensor], lambda node: _is_float(node, _MEANS | _PRODUCTS)).values()
    products = (node for node in makers if node.op in _PRODUCTS)
    return any(node.op == "Pow" or len(walk.computed_inputs(node)) > 1 for node in products)


def _is_float(node: gs.Node, operators: frozenset[str]) -> bool:
    return onnx_op(node) in operators and dtypes.is_type(node.outputs[0], dtypes.FLOAT)


def _standardised(shift: gs.Node, _: gs.Tensor) -> Iterable[int] | None:
    """Return the moves before a shift of an input by a stored mean, and the scalings by small deviations.

    Numbers around 120, such as longitudes of one country, are rounded to 1/4 in bfloat16. None for a mask,
    in which 1 marks a place: 1 - mask or mask - 1, times -10000 or the lowest float: 0 and 1 are exact in
    every format, and the product must not be infinite in float16.
    """
    mean = _constant(shift, "Sub", "Add")
    is_taken_from = shift.op == "Sub" and isinstance(shift.inputs[0], gs.Constant)
    if mean is None or is_taken_from or bool((abs(mean) == 1).all()):
        return None
    scales = [user for user, _ in walk.uses(shift.outputs[0]) if _is_far(mean, user)]
    if not scales:
        return None
    way = walk.way_to(shift.inputs, walk.is_source, lambda node: onnx_op(node) in MOVES | {"Cast"})
    return None if way is None else {*map(id, scales), *way}


def _constant(node: gs.Node, *operators: str) -> NDArray | None:
    """Return the values of the single constant that a node subtracts, adds, divides or multiplies by."""
    if onnx_op(node) not in operators:
        return None
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    if len(constants) != 1 or (node.op == "Div" and constants[0] is not node.inputs[1]):
        return None
    values = constants[0].values
    return values if dtypes.is_type(constants[0], dtypes.FLOAT) and bool(np.isfinite(values).all()) else None


def _is_far(mean: NDArray, scale: gs.Node) -> bool:
    """Return whether a node divides by deviations one of which is far below its mean."""
    values = _constant(scale, "Div", "Mul")
    if values is None:
        return False
    means, factors = abs(mean.astype(float)), abs(values.astype(float))
    return bool((means > _DEVIATIONS * factors if scale.op == "Div" else means * factors > _DEVIATIONS).any())


RULES: Mapping[str, Rule] = {
    "coordinates in an image": ({"GridSample": 1, "RoiAlign": 1, "MaxRoiPool": 1}, _coordinates),
    "last steps to an integer": ({"Cast": 0}, _steps_to_integer),
    "summed phases": ({"Sin": 0, "Cos": 0}, _running_sum),
    "cancelled sums": ({"Sub": 0}, _sums_with_addend),
    "differences of products": ({"Sqrt": 0, "Reciprocal": 0, "Div": 1}, _difference_and_dividend),
    "standardised inputs": ({"Sub": 0, "Add": 0}, _standardised),
}
"""All rules; the docstrings of their functions say what rounding would ruin."""
