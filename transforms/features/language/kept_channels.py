"""Operators that select or rearrange rows of a tensor and keep the channels of each row."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes
from transforms.graph.constants import Constants
from transforms.graph.rewire import onnx_op
from transforms.graph.shapes import shape_of, size

_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"})
_SLICED_AXES = 3
"""The input of a Slice with the axes."""


def keeps_channels(node: gs.Node, constants: Constants) -> bool:
    """Return whether each row along the last axis of the output is a row of the first input."""
    op, data = onnx_op(node), node.inputs[0]
    shape = shape_of(data)
    if op in ("Identity", "Cast"):
        return not dtypes.is_discrete(node.outputs[0])
    if op in _RESHAPES:
        channels = size(data, -1)
        return channels is not None and size(node.outputs[0], -1) == channels
    if op == "Transpose":
        perm = [int(axis) for axis in node.attrs.get("perm", ())]
        return bool(perm) and perm[-1] == len(perm) - 1
    if op == "Gather":
        return _keeps_last([int(node.attrs.get("axis", 0))], shape)
    return op == "Slice" and _keeps_last(_sliced_axes(node, constants), shape)


def _sliced_axes(node: gs.Node, constants: Constants) -> list[int] | None:
    """Return the axes that a Slice cuts, or None if they are not constant."""
    if "starts" in node.attrs:
        return [int(axis) for axis in node.attrs.get("axes", range(len(node.attrs["starts"])))]
    if len(node.inputs) > _SLICED_AXES and not node.inputs[_SLICED_AXES].is_empty():
        axes = constants.integers(node.inputs[_SLICED_AXES])
        return None if axes is None else list(axes)
    starts = shape_of(node.inputs[1])
    return list(range(starts[0])) if starts and isinstance(starts[0], int) else None


def _keeps_last(axes: list[int] | None, shape: tuple[int | str | None, ...] | None) -> bool:
    """Return whether the last axis of a tensor is not among some axes."""
    return axes is not None and shape is not None and not {-1, len(shape) - 1} & set(axes)
