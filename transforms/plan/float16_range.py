"""Nodes that must compute in float32 because their numbers exceed the range of float16: three rules.

The largest float16 is 65504; the least normal one is 2 ** -14 = 6.1e-5, and numbers below 2 ** -25 become
zero. Where a large constant is added, compared or selected, as in masks, the largest float16 serves as well.
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
"""Operators that multiply or divide by constants."""

_FLOORS = frozenset({"Add", "Max", "Clip"})
"""Operators that keep numbers away from zero."""

_ENDS = {"Div": 1, "Log": 0, "Reciprocal": 0, "Pow": 0}
"""Operators for which a number close to zero must not become zero, and the index of that input."""

_TO_ENDS = MOVES | {"Sqrt", "Abs", "Max", "Clip", "Cast"}
_SUMS = MOVES | {"Add", "Sum", "Mul", "Div", "Max", "Clip", "ReduceSum", "Cast"}
_SHIFTS = frozenset({"Add", "Sub"})
_AFFINE = _SHIFTS | {"Mul", "Div"}
_STEPS = _AFFINE | {"Relu", "Clip", "Max", "Min", "Neg", "Abs", "Floor", "Ceil", "Round"}
_ROOTS = frozenset({"Log", "Sqrt"})


def beyond_float16(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of a graph and its bodies that must compute in float32."""
    return roots_of_squares(graph) | float16_limits(graph) | large_numbers(graph)


def roots_of_squares(graph: gs.Graph) -> set[int]:
    """Return the ids of nodes that compute squares, their sums, and roots or logarithms of these.

    The square of 256 is infinite in float16, and that of 0.0001 is 0; a norm of numbers between them is
    neither, nor is the logarithm of a power spectrum. Between square and root there may only be additions of
    constants and products with them.
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
    """Return the ids of nodes with a constant factor that float16 cannot hold, and of those around an
    epsilon.

    For a node that keeps numbers away from zero they include the nodes before it, unless these are layers,
    and all nodes up to the divisor, logarithm or power. Factors beyond float16 are often variances of
    channels.
    """
    wide: set[int] = set()
    for node in walk.nodes(graph):
        op = onnx_op(node)
        constants = [t.values for t in node.inputs if isinstance(t, gs.Constant) and t.dtype == np.float32]
        if op in _FACTORS and any(
            _is_beyond(constant) or _is_tiny(np.abs(constant)) for constant in constants
        ):
            wide.add(id(node))
        elif op in _FLOORS and any(map(_is_tiny, constants)) and (ends := _way_to_ends(node)):
            makers = map(walk.producer, walk.computed_inputs(node))
            wide |= ends | {id(node), *(id(n) for n in makers if n is not None and not is_dot_product(n))}
    return wide


def _is_tiny(values: np.ndarray) -> bool:
    """Return whether a constant is a single number close to zero."""
    return values.size == 1 and 0 < float(values.reshape(())) < _LEAST


def _is_beyond(values: np.ndarray) -> bool:
    """Return whether the largest of some numbers is finite and beyond float16."""
    return _LARGEST < magnitude(values) < np.inf


def _way_to_ends(node: gs.Node) -> set[int]:
    """Return the ids of the nodes from one to the sensitive operators that it reaches; empty without any."""

    def _goes_on(user: gs.Node, _: int) -> bool:
        return onnx_op(user) in _TO_ENDS

    uses = [use for tensor in node.outputs for use in walk.uses_beyond(tensor, _goes_on)]
    ends = {id(user): user for user, index in uses if _ENDS.get(onnx_op(user)) == index}
    reached = {id(user) for user, index in uses if _goes_on(user, index)}
    tensors = (end.inputs[_ENDS[end.op]] for end in ends.values())
    return walk.makers(tensors, lambda maker: id(maker) in reached).keys() | ends.keys()


def large_numbers(graph: gs.Graph) -> set[int]:
    """Return the ids of the outermost graph's nodes with numbers above 65504, and of those after them.

    Such numbers come from a constant, or from an input of the model. A price is an output of a network times
    12,000 plus 180,000: each became 65504. They stay float32 up to the output of the model, or to where a
    constant reduces them, as a stored deviation does after a stored mean. The nodes are moves and steps with
    constants. A logarithm of a model input is among them with the steps before it: models take it of numbers
    that span many magnitudes.
    """
    wide: set[int] = set()
    for node in graph.nodes:
        if onnx_op(node) == "Log":
            way = walk.way_to(node.inputs, walk.is_source, _is_step)
            wide |= set() if way is None else {id(node), *way}
        elif _takes_beyond(node):
            after = _way_back(node, graph)
            before = [] if is_dot_product(node) or not after else node.inputs
            wide |= after | walk.makers(before, _is_step).keys()
    return wide


def _constants(node: gs.Node) -> list[np.ndarray]:
    """Return the values of the float32 constants that a node reads, for a layer those of its bias."""
    tensors = [bias(node)] if is_dot_product(node) else node.inputs
    return [t.values for t in tensors if isinstance(t, gs.Constant) and t.dtype == np.float32]


def _takes_beyond(node: gs.Node) -> bool:
    """Return whether a node computes with a constant beyond float16 that is not a mask."""
    if onnx_op(node) not in _AFFINE and not is_dot_product(node):
        return False
    beyond = filter(_is_beyond, _constants(node))
    return any(node.op not in _SHIFTS or not _is_mask(values) for values in beyond)


def _is_mask(values: np.ndarray) -> bool:
    """Return whether numbers are 0 and one other, or so large that nothing of an addend remains."""
    nonzero = values[values != 0]
    is_one = nonzero.size < values.size and bool((nonzero == nonzero[0]).all())
    return is_one or magnitude(values) >= NO_FRACTION


def _is_step(node: gs.Node) -> bool:
    """Return whether a node moves numbers, or combines each only with constants."""
    op = onnx_op(node)
    return op in MOVES or (op in _STEPS and len(walk.computed_inputs(node)) == 1)


def _brings_back(node: gs.Node) -> bool:
    """Return whether a node makes numbers smaller."""
    if node.op == "Mul":
        return any(bool((abs(values) < 1).any()) for values in _constants(node))
    return node.op in _ROOTS or (node.op == "Div" and isinstance(node.inputs[1], gs.Constant))


def _way_back(first: gs.Node, graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes from one to the model's outputs, or to those that make numbers smaller."""
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
