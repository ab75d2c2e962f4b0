"""Where the channels of a layer lie in tensors made of its output by operators that move numbers.

A layout is an array of the numbers of channels that broadcasts to a tensor from its last axis: [C] for rows
of C features, [H, 1, D] for those that attention splits into heads. Axes without channels have length 1.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import walk

Layout = NDArray[np.int64]
Places = list[tuple[gs.Tensor, Layout]]


def rows(layout: Layout) -> Layout | None:
    """Return the channels of each feature if all lie along the last axis, else None."""
    found = _trimmed(layout)
    return found if found.ndim == 1 else None


def places_after(tensor: gs.Tensor, layout: Layout) -> Places:
    """Return what the readers of a tensor make of it, and where the channels lie there.

    The readers are Reshape, Transpose, Squeeze, Unsqueeze, Split, Gather of one part, and MatMul with another
    computed tensor, as long as each number that they make comes of one channel, and each channel goes to one
    of the tensors returned. Otherwise, and without the shapes to tell, nothing is returned.
    """
    found: Places = []
    for node, index in walk.uses(tensor):
        move = MOVES.get(node.op)
        made = move(node, index, layout) if move else []
        if not made:
            return []
        found += made
    channels = np.concatenate([np.unique(part) for _, part in found]) if found else np.empty(0)
    return found if len(np.unique(channels)) == len(channels) else []


def _trimmed(layout: Layout) -> Layout:
    """Return a layout without leading axes of length 1, except the last."""
    lead = next((i for i, size in enumerate(layout.shape[:-1]) if size > 1), layout.ndim - 1)
    return layout.reshape(layout.shape[lead:])


def _spread(layout: Layout, rank: int) -> Layout | None:
    """Return a layout for so many axes."""
    found = _trimmed(layout)
    return found.reshape((1,) * (rank - found.ndim) + found.shape) if found.ndim <= rank else None


def _full(tensor: gs.Tensor, layout: Layout) -> Layout | None:
    """Return a layout with an axis for each of the tensor's, None if those are not known."""
    return None if tensor.shape is None else _spread(layout, len(tensor.shape))


def _reshape(node: gs.Node, index: int, layout: Layout) -> Places:
    """Channels that fill the last axes fill last axes again; those in front have the same size as before."""
    source, target = node.inputs[0].shape, node.outputs[0].shape
    found = _trimmed(layout)
    if index or source is None or target is None or tuple(source[-found.ndim :]) != found.shape:
        return []
    for count in range(1, len(target) + 1):
        last = target[-count:]
        if not all(isinstance(size, int) for size in last):
            break
        if math.prod(last) == found.size:
            return [(node.outputs[0], found.reshape(last))]
    return []


def _transpose(node: gs.Node, index: int, layout: Layout) -> Places:
    found = _full(node.inputs[0], layout)
    if found is None:
        return []
    return [(node.outputs[0], found.transpose(node.attrs.get("perm", range(found.ndim)[::-1])))]


def _change_rank(node: gs.Node, index: int, layout: Layout) -> Places:
    """Squeeze and Unsqueeze: the axes that stay keep their order."""
    found, target = _full(node.inputs[0], layout), node.outputs[0].shape
    axes = _axes(node)
    if index or found is None or target is None or axes is None:
        return []
    if node.op == "Squeeze":
        axes = tuple(axis % found.ndim for axis in axes)
        return [(node.outputs[0], found.squeeze(axes))] if all(found.shape[i] == 1 for i in axes) else []
    return [(node.outputs[0], np.expand_dims(found, tuple(axis % len(target) for axis in axes)))]


def _axes(node: gs.Node) -> tuple[int, ...] | None:
    if "axes" in node.attrs:
        return tuple(node.attrs["axes"])
    given = node.inputs[1] if len(node.inputs) > 1 else None
    return tuple(map(int, given.values)) if isinstance(given, gs.Constant) else None


def _split(node: gs.Node, index: int, layout: Layout) -> Places:
    found, axis = _full(node.inputs[0], layout), node.attrs.get("axis", 0)
    shapes = [tensor.shape for tensor in node.outputs]
    if index or found is None or any(shape is None or not isinstance(shape[axis], int) for shape in shapes):
        return []
    ends = np.cumsum([shape[axis] for shape in shapes])
    if found.shape[axis] != ends[-1]:
        return []
    return list(zip(node.outputs, np.split(found, ends[:-1], axis), strict=True))


def _gather(node: gs.Node, index: int, layout: Layout) -> Places:
    found, axis, part = _full(node.inputs[0], layout), node.attrs.get("axis", 0), node.inputs[1]
    if index or found is None or found.ndim < 2 or not isinstance(part, gs.Constant) or part.shape:
        return []
    if found.shape[axis] == 1:
        return []
    return [(node.outputs[0], np.asarray(found.take(int(part.values), axis)))]


def _multiply(node: gs.Node, index: int, layout: Layout) -> Places:
    """The product of two computed tensors: no channels along the axis of its sums."""
    shapes = [tensor.shape for tensor in node.inputs]
    if any(shape is None or isinstance(t, gs.Constant) for shape, t in zip(shapes, node.inputs, strict=True)):
        return []
    found, summed = _full(node.inputs[index], layout), -2 if index else -1
    ranks = {len(shape) for shape in shapes}
    if found is None or len(ranks) > 1 or found.ndim < -summed or found.shape[summed] != 1:
        return []
    return [(node.outputs[0], found)]


MOVES = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Squeeze": _change_rank,
    "Unsqueeze": _change_rank,
    "Split": _split,
    "Gather": _gather,
    "MatMul": _multiply,
}
"""Operators that move channels, and what they do to the layout of an input."""
