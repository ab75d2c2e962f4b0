"""Nodes that have to compute in float32 because float16 has not the range for their numbers: three rules.

The largest float16 is 65504; the least normal one is 2 ** -14 = 6.1e-5, and what is below 2 ** -25 becomes
zero. Where a large constant is added, compared or selected, as in masks, the largest float16 does as well.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import Constants, magnitude
from transforms.graph.dot_products import bias, is_dot_product
from transforms.graph.masks import NO_FRACTION
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import onnx_op

_LARGEST, _LEAST = 65504.0, 2.0**-14
_FACTORS = frozenset({"Mul", "Div", "Pow", "BatchNormalization"})
"""Operators that multiply with constants, or divide by them."""

_FLOORS = frozenset({"Add", "Max", "Clip"})
"""Operators with which numbers are kept away from zero."""

_ENDS = {"Div": 1, "Log": 0, "Reciprocal": 0, "Pow": 0}
"""Operators for which a number next to zero is not zero, and which input that is."""

_TO_ENDS = MOVES | {"Sqrt", "Abs", "Max", "Clip", "Cast"}
_SUMS = MOVES | {"Add", "Sum", "Mul", "Div", "Max", "Clip", "ReduceSum", "Cast"}
_SHIFTS = frozenset({"Add", "Sub"})
_AFFINE = _SHIFTS | {"Mul", "Div"}
_STEPS = _AFFINE | {"Relu", "Clip", "Max", "Min", "Neg", "Abs", "Floor", "Ceil", "Round"}
_ROOTS = frozenset({"Log", "Sqrt"})


def beyond_float16(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of a graph and its bodies that have to compute in float32."""
    return roots_of_squares(graph) | float16_limits(graph) | large_numbers(graph)


def roots_of_squares(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes that make squares, their sums, and the roots or logarithms of these.

    The square of 256 is infinite in float16, and that of 0.0001 is 0. A norm of numbers in between is
    neither, nor is the logarithm of a power spectrum. Only constants are added to the squares or multiplied
    with them.
    """
    constants = Constants(graph)

    def _is_power(node: gs.Node, *exponents: float) -> bool:
        return onnx_op(node) == "Pow" and constants.scalar(node.inputs[1]) in exponents

    def _is_square(node: gs.Node) -> bool:
        is_own_product = onnx_op(node) == "Mul" and node.inputs[0] is node.inputs[1]
        return is_own_product or onnx_op(node) == "ReduceSumSquare" or _is_power(node, 2)

    def _adds(node: gs.Node) -> bool:
        """Return whether a node adds numbers, or weighs them as a bank of filters does."""
        weighs = onnx_op(node) == "MatMul" and any(isinstance(tensor, gs.Constant) for tensor in node.inputs)
        return weighs or onnx_op(node) in _SUMS

    node_ids: set[int] = set()
    for node in walk.nodes(graph):
        if onnx_op(node) in _ROOTS or _is_power(node, 0.5, -0.5):
            way = walk.way_to(node.inputs[:1], walk.is_given, _adds, _is_square)
            if way and any(map(_is_square, way.values())):
                node_ids |= way.keys() | {id(node)}
    return node_ids


def float16_limits(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes that multiply with a constant that float16 does not have, and of those
    around an epsilon.

    With a node that keeps numbers away from zero these are what makes the numbers, unless that is a layer,
    and all from there to the divisor, logarithm or power. Large are many variances of channels.
    """
    found: set[int] = set()
    for node in walk.nodes(graph):
        op = onnx_op(node)
        constants = [t.values for t in node.inputs if isinstance(t, gs.Constant) and t.dtype == np.float32]
        if op in _FACTORS and any(_is_beyond(one) or _is_tiny(np.abs(one)) for one in constants):
            found.add(id(node))
        elif op in _FLOORS and any(map(_is_tiny, constants)) and (ends := _way_to_ends(node)):
            makers = map(walk.producer, walk.computed_inputs(node))
            found |= ends | {id(node), *(id(n) for n in makers if n is not None and not is_dot_product(n))}
    return found


def _is_tiny(values: np.ndarray) -> bool:
    """Return whether a constant is one number next to zero."""
    return values.size == 1 and 0 < float(values.reshape(())) < _LEAST


def _is_beyond(values: np.ndarray) -> bool:
    """Return whether the largest of some numbers is finite and beyond float16."""
    return _LARGEST < magnitude(values) < np.inf


def _way_to_ends(node: gs.Node) -> set[int]:
    """Return the ids of the nodes from one to the ends that its outcome reaches; none without such an end."""

    def _goes_on(user: gs.Node, _: int) -> bool:
        return onnx_op(user) in _TO_ENDS

    uses = [use for tensor in node.outputs for use in walk.uses_beyond(tensor, _goes_on)]
    ends = {id(user): user for user, index in uses if _ENDS.get(onnx_op(user)) == index}
    reached = {id(user) for user, index in uses if _goes_on(user, index)}
    tensors = (end.inputs[_ENDS[end.op]] for end in ends.values())
    return walk.makers(tensors, lambda one: id(one) in reached).keys() | ends.keys()


def large_numbers(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of the outermost graph that make numbers above 65504, which a constant
    takes there or an input of the model has, and of those after them.

    A price is what a net makes, times 12,000 and plus 180,000: each was 65504. They stay float32 up to the
    output of the model, or to where a constant brings them back, as a stored deviation does after a stored
    mean. They are steps with constants, and moves. A logarithm of an input of the model is among them with
    the steps before it: models take it where the numbers go over many magnitudes.
    """
    found: set[int] = set()
    for node in graph.nodes:
        if onnx_op(node) == "Log":
            way = walk.way_to(node.inputs, walk.is_source, _is_step)
            found |= set() if way is None else {id(node), *way}
        elif _takes_beyond(node):
            after = _way_back(node, graph)
            before = [] if is_dot_product(node) or not after else node.inputs
            found |= after | walk.makers(before, _is_step).keys()
    return found


def _constants(node: gs.Node) -> list[np.ndarray]:
    """Return the values of the float32 constants that a node reads, of a layer its bias."""
    given = [bias(node)] if is_dot_product(node) else node.inputs
    return [t.values for t in given if isinstance(t, gs.Constant) and t.dtype == np.float32]


def _takes_beyond(node: gs.Node) -> bool:
    """Return whether a constant of a node that computes with it is beyond float16, and no mask."""
    if onnx_op(node) not in _AFFINE and not is_dot_product(node):
        return False
    beyond = filter(_is_beyond, _constants(node))
    return any(node.op not in _SHIFTS or not _is_mask(values) for values in beyond)


def _is_mask(values: np.ndarray) -> bool:
    """Return whether numbers are 0 and one other, or leave nothing of what they are added to."""
    others = values[values != 0]
    is_one = others.size < values.size and bool((others == others[0]).all())
    return is_one or magnitude(values) >= NO_FRACTION


def _is_step(node: gs.Node) -> bool:
    """Return whether a node moves numbers, or changes each by constants alone."""
    op = onnx_op(node)
    return op in MOVES or (op in _STEPS and len(walk.computed_inputs(node)) == 1)


def _brings_back(node: gs.Node) -> bool:
    """Return whether numbers are smaller after a node."""
    if node.op == "Mul":
        return any(bool((abs(values) < 1).any()) for values in _constants(node))
    return node.op in _ROOTS or (node.op == "Div" and isinstance(node.inputs[1], gs.Constant))


def _way_back(first: gs.Node, graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes from one to outputs of the model, or to those that bring numbers back."""
    reached, waiting = {id(first): first}, [first]
    while waiting:
        node = waiting.pop()
        users = [] if _brings_back(node) else [user for t in node.outputs for user, _ in walk.uses(t)]
        new = {id(u): u for u in users if id(u) not in reached and (_is_step(u) or u.op in _ROOTS)}
        reached |= new
        waiting += new.values()
    last = (
        n for n in reached.values() if _brings_back(n) or any(walk.is_output(t, graph) for t in n.outputs)
    )
    return set(walk.makers((t for node in last for t in node.outputs), lambda node: id(node) in reached))
