"""Where the axis of channels is after an operator that moves numbers, and was before it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})
_ALONG = frozenset({"Slice", "Gather", "Split", "Concat", "ReduceMean"})  # other axes than that of channels
MOVES = _VIEWS | _ALONG | {"Transpose", "Expand"}
"""Operators that take a number of each channel from a tensor, or the mean of such rows."""


def moved_axis(node: gs.Node, tensor: gs.Tensor, axis: int, other: gs.Tensor) -> int | None:
    """Return the axis of the channels of ``other``, on the other side of a node in ``MOVES`` than ``tensor``.

    Both axes are counted from the end. None if channels are not kept whole, or shapes do not tell.
    """
    if tensor.shape is None or other.shape is None:
        return None
    if node.op in _VIEWS:
        return _same_place(tensor.shape, axis, other.shape)
    rank = len(tensor.shape)
    if node.op == "Transpose":
        order = list(node.attrs.get("perm", range(rank)[::-1]))
        return int(order[axis] if tensor is node.outputs[0] else order.index(axis % rank)) - rank
    if node.op == "Expand":
        return axis
    axes = axes_of(node)
    return axis if axes is not None and all(along < axis for along in axes) else None


def _same_place(shape: Sequence[int | str], axis: int, other: Sequence[int | str]) -> int | None:
    """Return the axis with as many channels and as many numbers after each."""
    after = _size(shape[axis:][1:])
    for place in range(-1, -len(other) - 1, -1):
        if after is not None and other[place] == shape[axis] and _size(other[place:][1:]) == after:
            return place
    return None


def _size(shape: Sequence[int | str]) -> int | None:
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) else None


def axes_of(node: gs.Node) -> list[int] | None:
    """Return the axes along which a node takes parts or sums, from the end, None if they are not known."""
    rank = len(node.inputs[0].shape)
    if "axis" in node.attrs or node.op in ("Gather", "Split"):
        axes: Sequence[int] | None = [node.attrs.get("axis", 0)]
    elif "axes" in node.attrs:
        axes = node.attrs["axes"]
    else:
        index = 3 if node.op == "Slice" else 1
        given = node.inputs[index] if len(node.inputs) > index else None
        axes = np.ravel(given.values).tolist() if isinstance(given, gs.Constant) else None
    return None if axes is None else [int(axis) % rank - rank for axis in axes]
