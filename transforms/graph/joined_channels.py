"""Find the parts of an output's channels that a Concat joins.

Detectors join boxes in pixels, classes and scores in one output. Their magnitudes differ, and a comparison
of the whole output sees only the largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.rewire import onnx_op
from transforms.graph.shapes import Shape, shape_of

_KEEP_AXES = frozenset(
    {"Identity", "Cast", "Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "Tanh", "Exp", "Neg", "Slice"}
    | {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt"}
)
"""Operators that keep the order of axes, except for one that they cut."""

_MOVE_AXES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather"})


@dataclass(frozen=True)
class Joined:
    """The ``axis`` along which a tensor is joined, from 0, and the sizes of its parts along it."""

    axis: int
    sizes: tuple[int, ...]


def joined_channels(tensor: gs.Tensor) -> Joined | None:
    """Return how a tensor was joined, as far as shapes tell, or None if it was not.

    For Concats of Concats along other axes, such as detections at several scales, the inner joins; along the
    same axis, both.
    """
    node, shape = walk.producer(tensor), shape_of(tensor)
    if node is None or shape is None:
        return None
    if onnx_op(node) == "Concat":
        return _of_concat(node, len(shape))
    before = next((data for data in node.inputs if not isinstance(data, gs.Constant)), None)
    joined = None if before is None or not _leads_on(node) else joined_channels(before)
    if joined is None:
        return None
    axis = _axis_after(node, joined, shape)
    return None if axis is None else Joined(axis, joined.sizes)


def _leads_on(node: gs.Node) -> bool:
    return onnx_op(node) in _KEEP_AXES | _MOVE_AXES | {"Transpose"}


def _of_concat(node: gs.Node, rank: int) -> Joined | None:
    axis = int(node.attrs["axis"]) % rank
    joins = [joined_channels(tensor) for tensor in node.inputs]
    if (first := joins[0]) is not None and first.axis != axis:
        return first if all(join == first for join in joins) else None
    sizes: list[int] = []
    for tensor, join in zip(node.inputs, joins, strict=True):
        shape = shape_of(tensor)
        size = shape[axis] if shape is not None and len(shape) == rank else None
        if not isinstance(size, int):
            return None
        sizes += join.sizes if join is not None and join.axis == axis else (size,)
    return Joined(axis, tuple(sizes))


def _axis_after(node: gs.Node, before: Joined, shape: Shape) -> int | None:
    """Return the axis of a node's output along which the parts lie; None if it is unknown."""
    size = sum(before.sizes)
    if onnx_op(node) == "Transpose":
        order = list(node.attrs.get("perm") or reversed(range(len(shape))))
        return order.index(before.axis)
    if onnx_op(node) in _KEEP_AXES:
        return before.axis if before.axis < len(shape) and shape[before.axis] == size else None
    axes = [axis for axis, length in enumerate(shape) if length == size]
    return axes[0] if len(axes) == 1 else None
