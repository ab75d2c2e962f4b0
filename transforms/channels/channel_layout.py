"""Where the channels of a layer lie in tensors made of its output by operators that move numbers.

A layout is an array of the numbers of channels that broadcasts to a tensor from its last axis: [C] for rows
of C features, [H, 1, D] for those that attention splits into heads. Axes without channels have length 1.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

Layout = NDArray[np.int64]

MOVING = frozenset({"Reshape", "Transpose", "MatMul"})
"""Operators that move channels, or leave them where they are."""


def rows(layout: Layout) -> Layout | None:
    """Return the channels of each feature if all lie along the last axis, else None."""
    found = _trimmed(layout)
    return found if found.ndim == 1 else None


def moved(node: gs.Node, index: int, layout: Layout) -> Layout | None:
    """Return where the channels of input ``index`` lie in what a node makes of it.

    The node is a Reshape, a Transpose, or a MatMul with another computed tensor that does not sum over
    channels. None for others, and without the shapes to tell.
    """
    if node.op == "MatMul":
        return _multiplied(node, index, layout)
    if index or node.op not in MOVING:
        return None
    return _reshaped(node, layout) if node.op == "Reshape" else _transposed(node, layout)


def _trimmed(layout: Layout) -> Layout:
    """Return a layout without leading axes of length 1, except the last."""
    lead = next((i for i, size in enumerate(layout.shape[:-1]) if size > 1), layout.ndim - 1)
    return layout.reshape(layout.shape[lead:])


def _full(tensor: gs.Tensor, layout: Layout) -> Layout | None:
    """Return a layout with an axis for each of the tensor's, None if those are not known."""
    found = _trimmed(layout)
    if tensor.shape is None or found.ndim > len(tensor.shape):
        return None
    return found.reshape((1,) * (len(tensor.shape) - found.ndim) + found.shape)


def _reshaped(node: gs.Node, layout: Layout) -> Layout | None:
    """Channels that fill the last axes fill last axes again; those in front have the same size as before."""
    source, target = node.inputs[0].shape, node.outputs[0].shape
    found = _trimmed(layout)
    if source is None or target is None or tuple(source[-found.ndim :]) != found.shape:
        return None
    for count in range(1, len(target) + 1):
        last = target[-count:]
        if not all(isinstance(size, int) for size in last):
            break
        if math.prod(last) == found.size:
            return found.reshape(last)
    return None


def _transposed(node: gs.Node, layout: Layout) -> Layout | None:
    found = _full(node.inputs[0], layout)
    return None if found is None else found.transpose(node.attrs.get("perm", range(found.ndim)[::-1]))


def _multiplied(node: gs.Node, index: int, layout: Layout) -> Layout | None:
    """The product of two computed tensors: no channels along the axis of its sums."""
    found, summed = _full(node.inputs[index], layout), -2 if index else -1
    other = node.inputs[1 - index]
    if found is None or isinstance(other, gs.Constant) or other.shape is None:
        return None
    is_alike = found.ndim == len(other.shape) >= -summed
    return found if is_alike and found.shape[summed] == 1 else None
