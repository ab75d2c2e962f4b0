"""Where the channels of an output come from different tensors, by the Concat that joins them.

Detectors join boxes in pixels, classes and scores in one output. Their numbers are of different sizes, and
who compares the whole sees the largest alone.
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
"""Operators that leave each axis where it is, but for one that they cut."""

_MOVE_AXES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Gather"})


@dataclass(frozen=True)
class Joined:
    """The ``axis`` along which a tensor is joined, from 0, and the sizes of its parts along it."""

    axis: int
    sizes: tuple[int, ...]


def joined_channels(tensor: gs.Tensor) -> Joined | None:
    """Return how a tensor was joined, as far as shapes tell; None for one that was not.

    Of a Concat of Concats along other axes, as of detections of several scales, these; along its own, both.
    """
    node, shape = walk.producer(tensor), shape_of(tensor)
    if node is None or shape is None:
        return None
    if onnx_op(node) == "Concat":
        return _of_concat(node, len(shape))
    before = next((one for one in node.inputs if not isinstance(one, gs.Constant)), None)
    found = None if before is None or not _leads_on(node) else joined_channels(before)
    if found is None:
        return None
    axis = _axis_after(node, found, shape)
    return None if axis is None else Joined(axis, found.sizes)


def _leads_on(node: gs.Node) -> bool:
    return onnx_op(node) in _KEEP_AXES | _MOVE_AXES | {"Transpose"}


def _of_concat(node: gs.Node, rank: int) -> Joined | None:
    axis = int(node.attrs["axis"]) % rank
    parts = [joined_channels(tensor) for tensor in node.inputs]
    if (first := parts[0]) is not None and first.axis != axis:
        return first if all(part == first for part in parts) else None
    sizes: list[int] = []
    for tensor, part in zip(node.inputs, parts, strict=True):
        shape = shape_of(tensor)
        size = shape[axis] if shape is not None and len(shape) == rank else None
        if not isinstance(size, int):
            return None
        sizes += part.sizes if part is not None and part.axis == axis else (size,)
    return Joined(axis, tuple(sizes))


def _axis_after(node: gs.Node, before: Joined, shape: Shape) -> int | None:
    """Return the axis of what a node makes along which the parts lie; None if that is not known."""
    size = sum(before.sizes)
    if onnx_op(node) == "Transpose":
        order = list(node.attrs.get("perm") or reversed(range(len(shape))))
        return order.index(before.axis)
    if onnx_op(node) in _KEEP_AXES:
        return before.axis if before.axis < len(shape) and shape[before.axis] == size else None
    axes = [axis for axis, length in enumerate(shape) if length == size]
    return axes[0] if len(axes) == 1 else None
