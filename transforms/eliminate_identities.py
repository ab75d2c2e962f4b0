"""Removal of nodes that pass their input on unchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, shapes, walk
from transforms.graph.constants import Constants
from transforms.graph.rewire import bypass, onnx_op, remove_unused
from transforms.graph.selection import Choice, Exclusion, NodeSet, resolve

Rule = Callable[[gs.Node, Constants], "int | None"]
"""Which input a node passes on, None unless types, shapes and constants prove that it does."""


def eliminate_identities(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Remove the nodes that pass their input on bit for bit; return how many.

    In the bodies of If, Loop and Scan too:

    * Identity; Dropout outside training with an unused mask; Concat, Sum, Max, Min, Mean of one input;
    * Cast to the type that the tensor already has;
    * Reshape, Flatten, Squeeze, Unsqueeze and Expand to the shape that the tensor provably has;
    * Transpose that keeps the order of axes, and pairs of Transposes that cancel;
    * Pad by nothing; Mul and Div by 1, Sub of 0, Add of 0 to integers, if these do not broadcast.

    Outputs of the model and of bodies keep their names and get the node before as their producer. A node
    stays if that is not possible (an output that is also an input, a constant or another output), if types or
    shapes are not known, and if it is in ``exclude`` or not in ``nodes``. An Add of 0 to floats stays, as it
    changes -0.
    """
    constants, outputs, excluded = Constants(graph), walk.outputs(graph), resolve(exclude, graph, nodes)
    count = 0
    for inner in walk.graphs(graph):
        count += _cancel_transposes(inner, excluded)
        idle: list[gs.Node] = []
        for node in inner.nodes:
            passed = None if node in excluded else _passed(node, constants, outputs)
            if passed is not None:
                node.inputs = [node.inputs[passed]]
                idle.append(node)
        count += bypass(inner, idle, outputs)
    return count


def _passed(node: gs.Node, constants: Constants, outputs: set[int]) -> int | None:
    """Return the index of the input that a node passes on as its only used output, or None."""
    rule = _RULES.get(onnx_op(node))
    further = node.outputs[1:]
    if rule is None or not node.inputs or any(output.outputs or id(output) in outputs for output in further):
        return None
    return rule(node, constants)


def _cancel_transposes(graph: gs.Graph, excluded: NodeSet) -> int:
    """Bypass pairs of Transposes that cancel; return how many of the first ones became unused."""
    inside = {id(node) for node in graph.nodes if node not in excluded and onnx_op(node) == "Transpose"}
    undone: list[gs.Node] = []
    for node in (node for node in graph.nodes if id(node) in inside):
        first = walk.producer(node.inputs[0])
        if first is None or id(first) not in inside:
            continue
        orders = [transpose.attrs.get("perm") for transpose in (first, node)]
        if None not in orders and [orders[0][axis] for axis in orders[1]] == sorted(orders[0]):
            node.op, node.attrs, node.inputs = "Identity", {}, [first.inputs[0]]
            undone.append(first)
    remove_unused(graph, undone)
    return sum(not node.outputs for node in undone)


def _first(is_neutral: Callable[[gs.Node, Constants], bool]) -> Rule:
    return lambda node, constants: 0 if is_neutral(node, constants) else None


def _is_idle_dropout(node: gs.Node, constants: Constants) -> bool:
    mode = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    return mode is None or constants.scalar(mode) == 0


def _keeps_type(node: gs.Node, constants: Constants) -> bool:
    to, source = node.attrs["to"], dtypes.element_type(node.inputs[0])
    return source is not None and source == (to if isinstance(to, int) else dtypes.element_of(to))


def _keeps_order(node: gs.Node, constants: Constants) -> bool:
    order = node.attrs.get("perm")
    shape = shapes.shape_of(node.inputs[0])
    return list(order) == sorted(order) if order is not None else shape is not None and len(shape) < 2


def _keeps_shape(node: gs.Node, constants: Constants) -> bool:
    """Return whether the shape stays the same; one size may be unknown if the number of elements is kept."""
    before, after = (shapes.shape_of(tensor) for tensor in (node.inputs[0], node.outputs[0]))
    if before is None or after is None or len(before) != len(after):
        return False
    same = [shapes.are_same(*pair) for pair in zip(before, after, strict=True)]
    if all(same) or onnx_op(node) in ("Squeeze", "Unsqueeze"):
        return True
    fixed = [size for size, is_same in zip(before, same, strict=True) if is_same]
    is_whole = all(isinstance(size, int) and size > 0 for size in fixed)
    return onnx_op(node) != "Expand" and is_whole and len(fixed) == len(before) - 1


def _pads_nothing(node: gs.Node, constants: Constants) -> bool:
    pads = node.attrs.get("pads")
    if pads is None and len(node.inputs) > 1:
        pads = constants.integers(node.inputs[1])
    return pads is not None and not any(pads)


def _neutral_operand(number: int, *, either: bool, integers: bool = False) -> Rule:
    """Return the rule of an operator that passes an operand on if the other one is ``number``.

    That is the second operand, or ``either``.
    """

    def _rule(node: gs.Node, constants: Constants) -> int | None:
        for passed in (0, 1) if either else (0,):
            source, other = node.inputs[passed], node.inputs[1 - passed]
            value, added = constants.scalar(other), constants.shape(other)
            rank = len(shapes.shape_of(source) or ())
            fits = added is not None and len(added) <= rank and (not integers or dtypes.is_discrete(source))
            if fits and value == number and not np.signbit(value):
                return passed
        return None

    return _rule


_ALONE = _first(lambda node, constants: len(node.inputs) == 1)
_SHAPE = _first(_keeps_shape)
_RULES: dict[str, Rule] = {
    "Identity": _ALONE,
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _ALONE),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand"), _SHAPE),
    "Dropout": _first(_is_idle_dropout),
    "Cast": _first(_keeps_type),
    "Transpose": _first(_keeps_order),
    "Pad": _first(_pads_nothing),
    "Mul": _neutral_operand(1, either=True),
    "Div": _neutral_operand(1, either=False),
    "Sub": _neutral_operand(0, either=False),
    "Add": _neutral_operand(0, either=True, integers=True),
}
