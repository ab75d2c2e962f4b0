"""Where the channels of a layer lie in tensors made of its output by operators that move numbers.

A layout is an array of the numbers of channels that broadcasts to a tensor, with as many axes: [1, 1, C] for
rows of C features, [1, H, 1, D] for those that attention splits into heads. Axes without channels have
length 1.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

Layout = NDArray[np.int64]

MOVING = frozenset({"Reshape", "Transpose", "MatMul"})
"""Operators that move channels, or leave them where they are."""


def layout_of(tensor: gs.Tensor, channels: int) -> Layout | None:
    """Return the layout of a tensor with channels along its last axis, None without its shape."""
    if tensor.shape is None:
        return None
    return np.arange(channels).reshape((1,) * (len(tensor.shape) - 1) + (-1,))


def rows(layout: Layout) -> Layout | None:
    """Return the channels of each feature if all lie along the last axis, else None."""
    return layout.reshape(-1) if layout.shape[-1] == layout.size else None


def moved(node: gs.Node, index: int, layout: Layout) -> Layout | None:
    """Return where the channels of input ``index`` lie in what a node makes of it.

    The node is a Reshape, a Transpose, or a MatMul with another computed tensor that does not sum over
    channels. None for others, and without the shapes to tell.
    """
    if node.op == "MatMul":
        return layout if _keeps(node, index, layout) else None
    if index or node.op not in MOVING:
        return None
    return _reshaped(node, layout) if node.op == "Reshape" else layout.transpose(node.attrs.get("perm"))


def _reshaped(node: gs.Node, layout: Layout) -> Layout | None:
    """Channels that fill the last axes fill last axes again; those in front have the same size as before."""
    source, target = node.inputs[0].shape, node.outputs[0].shape
    lead = next((i for i, size in enumerate(layout.shape[:-1]) if size > 1), layout.ndim - 1)
    if source is None or target is None or tuple(source[lead:]) != layout.shape[lead:]:
        return None
    for first in reversed(range(len(target))):
        last = target[first:]
        if not all(isinstance(size, int) for size in last):
            break
        if math.prod(last) == layout.size:
            return layout.reshape((1,) * first + tuple(last))
    return None


def _keeps(node: gs.Node, index: int, layout: Layout) -> bool:
    """Return whether the product of two computed tensors has no channels along the axis of its sums."""
    summed, other = -2 if index else -1, node.inputs[1 - index]
    is_computed = not isinstance(other, gs.Constant) and other.shape is not None
    return is_computed and layout.ndim == len(other.shape) >= -summed and layout.shape[summed] == 1
