"""Gradients of operators that move elements: each element's gradient goes back to its place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.gradients.step import NoRuleError, Step, Value

_SCATTER_ADDS = 16
"""First opset in which ScatterElements can add."""


def dropout(s: Step) -> gs.Tensor:
    """Dropout, which does nothing outside training."""
    training = s.input(2)
    if training is not None and s.writer.constants.scalar(training) != 0:
        raise NoRuleError("it may be in training mode")
    return s.g


def transpose(s: Step) -> gs.Tensor:
    """Transpose: the inverse permutation."""
    perm = s.attribute("perm", None)
    if perm is None:
        return s("Transpose", s.g)
    return s("Transpose", s.g, perm=[int(axis) for axis in np.argsort(perm)])


def concat(s: Step) -> gs.Tensor:
    """Concat: one Split for all parts."""
    axis, inputs = int(s.node.attrs["axis"]), list(s.node.inputs)

    def _split() -> list[gs.Variable]:
        sizes = [_size_along(s, part, axis) for part in inputs]
        fixed = [size for size in sizes if isinstance(size, int)]
        if len(fixed) == len(sizes):
            return s.several("Split", s.g, fixed, count=len(inputs), axis=axis)
        parts = [[size] if isinstance(size, int) else size for size in sizes]
        return s.several("Split", s.g, s("Concat", *parts, axis=0), count=len(inputs), axis=axis)

    return s.writer.once(("split", id(s.node)), _split)[s.index]


def _size_along(s: Step, part: gs.Tensor, axis: int) -> int | gs.Tensor:
    size = part.shape[axis] if part.shape is not None else None
    return size if isinstance(size, int) else s("Gather", s.shape(part), [axis], axis=0)


def split(s: Step) -> gs.Tensor:
    """Split: the gradients of all parts put together."""
    parts = [s.gradient(i) for i in range(len(s.node.outputs))]
    return s("Concat", *parts, axis=int(s.attribute("axis", 0)))


def slice_(s: Step) -> gs.Tensor:
    """Slice: padding if it takes contiguous elements, else element by element."""
    starts = _starts(s)
    if starts is None:
        return put_back(s, lambda places: s("Slice", places, *s.node.inputs[1:]), distinct=True)
    before: Value = starts
    if min(starts, default=0) < 0:
        from_end = s("Mul", s.shape(s.x), [int(start < 0) for start in starts])
        before = s("Max", s("Add", from_end, starts), [0])
    after = s("Sub", s("Sub", s.shape(s.x), s.shape(s.y)), before)
    return s("Pad", s.g, s("Concat", before, after, axis=0))


def _starts(s: Step) -> list[int] | None:
    """Return the starts of a Slice without gaps along each axis, None with gaps or computed starts."""
    known = [
        s.input(i) is None or s.writer.constants.integers(s.node.inputs[i]) is not None for i in (1, 3, 4)
    ]
    if s.x.shape is None or not all(known) or any(step != 1 for step in s.integers(4) or ()):
        return None
    given, starts = s.integers(1) or (), [0] * len(s.x.shape)
    for axis, start in zip(s.integers(3) or range(len(given)), given, strict=True):
        starts[axis] = start
    return starts


def pad(s: Step) -> gs.Tensor:
    """Pad: a Slice; for a mode that repeats elements, element by element."""
    pads, axes = s.node.inputs[1], s.input(3)
    mode = str(s.attribute("mode", "constant"))
    if mode == "constant":
        return s("Pad", s.g, s("Neg", pads), None, axes)
    return put_back(s, lambda places: s("Pad", places, pads, None, axes, mode=mode))


def gather(s: Step) -> gs.Tensor:
    """Gather: padding for one constant index, else element by element."""
    axis = int(s.attribute("axis", 0))
    indices = s.node.inputs[1]
    known = s.writer.constants.values(indices)
    sizes = s.x.shape
    if known is not None and known.ndim == 0 and sizes is not None and isinstance(sizes[axis], int):
        rank, place = len(sizes), int(known) % sizes[axis]
        pads = [0] * (2 * rank)
        pads[axis % rank], pads[rank + axis % rank] = place, sizes[axis] - 1 - place
        return s("Pad", s("Unsqueeze", s.g, [axis % rank]), pads)
    distinct = known is not None and known.min(initial=0) >= 0 and np.unique(known).size == known.size
    return put_back(s, lambda places: s("Gather", places, indices, axis=axis), distinct=distinct)


def moved(s: Step) -> gs.Tensor:
    """Operators that pick elements of their first input: GatherElements, GatherND, Tile."""
    return put_back(s, lambda places: s(s.node.op, places, *s.node.inputs[1:], **s.node.attrs))


def put_back(s: Step, move: Callable[[gs.Tensor], gs.Tensor], *, distinct: bool = False) -> gs.Tensor:
    """Add each element of the gradient to the place that ``move`` read it from.

    ``move`` is applied to the places themselves, numbered in C order; ``distinct``: it reads none twice.
    """
    count = s("ReduceProd", s("Shape", s.x), keepdims=0)
    places = s.reshape(s("Range", np.array(0, np.int64), count, np.array(1, np.int64)), s.x)
    return scatter(s, move(places), distinct=distinct)


def scatter(s: Step, places: gs.Tensor, *, distinct: bool = False) -> gs.Tensor:
    """Add the gradient to the places of x, numbered in C order, one for each element of the output."""
    if not distinct and s.writer.opset < _SCATTER_ADDS:
        raise NoRuleError(f"it needs opset {_SCATTER_ADDS}, the graph has {s.writer.opset}")
    zeros = s("Reshape", s.zeros(s.x), [-1])
    mode = {} if distinct else {"reduction": "add"}
    flat = s("Reshape", places, [-1]), s("Reshape", s.g, [-1])
    return s.reshape(s("ScatterElements", zeros, *flat, axis=0, **mode), s.x)


def scatter_into(s: Step) -> gs.Tensor:
    """ScatterND and ScatterElements, which write their third input into their first."""
    if s.attribute("reduction", "none") != "none":
        raise NoRuleError("it combines elements")
    indices = s.node.inputs[1]
    elements = s.node.op == "ScatterElements"
    axis = {"axis": int(s.attribute("axis", 0))} if elements else {}
    if s.index == 2:
        return s("GatherElements" if elements else "GatherND", s.g, indices, **axis)
    return s(s.node.op, s.g, indices, s.zeros(s.node.inputs[2]), **axis)


def depth_to_space(s: Step) -> gs.Tensor:
    """DepthToSpace; in mode CRD the channels of the inverse have to be reordered."""
    block = int(s.node.attrs["blocksize"])
    deep = s("SpaceToDepth", s.g, blocksize=block)
    if s.attribute("mode", "DCR") == "DCR":
        return deep
    channels = s.sizes(s.x)[1]
    if not isinstance(channels, int):
        raise NoRuleError("its number of channels is not fixed")
    apart = s("Reshape", deep, [0, block * block, channels // (block * block), -1])
    return s.reshape(s("Transpose", apart, perm=[0, 2, 1, 3]), s.x)


def resize(s: Step) -> gs.Tensor:
    """Resize to the nearest element: sums over blocks, else element by element."""
    if s.attribute("mode", "nearest") != "nearest":
        raise NoRuleError(f"mode '{s.node.attrs['mode']}' has no rule")
    block = _block(s)
    if block is not None:
        mean = s("AveragePool", s.g, kernel_shape=block, strides=block)
        return s("Mul", mean, float(np.prod(block)))

    def _move(places: gs.Tensor) -> gs.Tensor:
        narrow = s("Cast", places, to=int(onnx.TensorProto.INT32))  # the runtime cannot resize int64
        found = s("Resize", narrow, *s.node.inputs[1:], **s.node.attrs)
        return s("Cast", found, to=int(onnx.TensorProto.INT64))

    return put_back(s, _move)


def _block(s: Step) -> list[int] | None:
    """Return the shape of the block of outputs that each element of an image becomes, or None."""
    scales = s.input(2)
    values = None if scales is None else s.writer.constants.values(scales)
    form = (
        s.attribute("coordinate_transformation_mode", "half_pixel"),
        s.attribute("nearest_mode", "round_prefer_floor"),
    )
    if values is None or s.attribute("axes", None) or form not in _WHOLE_BLOCKS or values.size < 3:
        return None
    whole = bool(np.all(values == np.floor(values))) and values[0] == values[1] == 1 and values.min() >= 1
    return [int(scale) for scale in values[2:]] if whole else None


_WHOLE_BLOCKS = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
"""Ways to choose the nearest element that copy each one into a whole block, for scales that are integers."""
