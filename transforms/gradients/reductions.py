"""Gradients of operators that sum over axes or windows: reductions, normalizations, poolings."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.gradients.moves import scatter
from transforms.gradients.products import Windows, spread, windows
from transforms.gradients.step import NoRuleError, Step, Value

_FLOAT = int(onnx.TensorProto.FLOAT)


def softmax(s: Step) -> gs.Tensor:
    """Softmax: y (g - sum g y)."""
    total = s.reduce("ReduceSum", s("Mul", s.g, s.y), [int(s.attribute("axis", -1))])
    return s("Mul", s.y, s("Sub", s.g, total))


def log_softmax(s: Step) -> gs.Tensor:
    """LogSoftmax: g - e^y sum g."""
    total = s.reduce("ReduceSum", s.g, [int(s.attribute("axis", -1))])
    return s("Sub", s.g, s("Mul", s("Exp", s.y), total))


def layer_normalization(s: Step) -> gs.Tensor:
    """LayerNormalization, for its data."""
    scale, axis = s.node.inputs[1], int(s.attribute("axis", -1))
    axes = range(axis, 0) if axis < 0 else range(axis, s.rank(s.x))
    one = s("ConstantOfShape", s.shape(scale), value=gs.Constant("", np.ones(1, np.float32)))
    attrs = {name: s.node.attrs[name] for name in ("axis", "epsilon", "stash_type") if name in s.node.attrs}
    unit, _, inverse = s.several("LayerNormalization", s.x, one, count=3, **attrs)
    return _normalized(s, s("Mul", s.g, scale), unit, inverse, list(axes))


def instance_normalization(s: Step) -> gs.Tensor:
    """InstanceNormalization, for its data."""
    axes = list(range(2, s.rank(s.x)))
    centred = s("Sub", s.x, s.reduce("ReduceMean", s.x, axes))
    variance = s.reduce("ReduceMean", s("Mul", centred, centred), axes)
    shifted = s("Add", variance, float(s.attribute("epsilon", 1e-5)))
    inverse = s("Reciprocal", s("Sqrt", shifted))
    scale = s("Reshape", s.node.inputs[1], [-1] + [1] * len(axes))
    return _normalized(s, s("Mul", s.g, scale), s("Mul", centred, inverse), inverse, axes)


def _normalized(s: Step, g: gs.Tensor, unit: gs.Tensor, inverse: gs.Tensor, axes: list[int]) -> gs.Tensor:
    """Return the gradient of x from that of ``unit = (x - mean) * inverse``, the inverse deviation."""
    along = s("Mul", unit, s.reduce("ReduceMean", s("Mul", g, unit), axes))
    rest = s("Sub", s("Sub", g, s.reduce("ReduceMean", g, axes)), along)
    return s("Mul", rest, inverse)


def batch_normalization(s: Step) -> gs.Tensor:
    """BatchNormalization with given statistics: one factor for each channel."""
    if s.attribute("training_mode", 0):
        raise NoRuleError("it is in training mode")
    scale, variance = s.node.inputs[1], s.node.inputs[4]
    deviation = s("Sqrt", s("Add", variance, float(s.attribute("epsilon", 1e-5))))
    factor = s("Div", scale, deviation)
    return s("Mul", s.g, s("Reshape", factor, [-1] + [1] * (s.rank(s.x) - 2)))


def _axes(s: Step) -> list[int] | None:
    """Return the axes of a reduction, None for all of them."""
    axes = s.attribute("axes", None)
    if axes is None:
        axes = s.integers(1)
    if not axes and s.attribute("noop_with_empty_axes", 0):
        raise NoRuleError("it reduces no axis")
    return list(axes) if axes else None


def restored(s: Step, reduced: gs.Tensor) -> gs.Tensor:
    """Return a tensor of the output's shape with the reduced axes of size 1, or a scalar for all axes."""
    axes = _axes(s)
    if s.attribute("keepdims", 1) or axes is None:
        return reduced
    return s("Unsqueeze", reduced, axes)


def reduce_mean(s: Step) -> gs.Tensor:
    """ReduceMean and GlobalAveragePool."""
    return s("Expand", s("Div", restored(s, s.g), _elements_each(s)), s.shape(s.x))


def _elements_each(s: Step) -> Value:
    """Return how many elements of x are reduced to one of the output."""
    read, made = s.fixed_sizes(s.x), s.fixed_sizes(s.y)
    if read is not None and made is not None:
        return float(np.prod(read) / np.prod(made))
    sizes = [s("Cast", s("ReduceProd", s("Shape", t), keepdims=0), to=_FLOAT) for t in (s.x, s.y)]
    return s("Div", *sizes)


def reduce_extremum(s: Step) -> gs.Tensor:
    """ReduceMax and ReduceMin: to the elements that equal the result, in equal parts."""
    return chosen(s, restored(s, s.y), restored(s, s.g), _axes(s) or list(range(s.rank(s.x))))


def chosen(s: Step, extremum: gs.Tensor, g: gs.Tensor, axes: list[int]) -> gs.Tensor:
    """Return the gradient of the elements of x that equal an extremum over axes, in equal parts."""
    mask = s("Cast", s("Equal", s.x, extremum), to=_FLOAT)
    return s("Mul", mask, s("Div", g, s.reduce("ReduceSum", mask, axes)))


def max_pool(s: Step) -> gs.Tensor:
    """MaxPool: each element goes back to the index that the operator outputs."""
    attrs = {name: value for name, value in s.node.attrs.items() if name != "storage_order"}
    _, places = s.several("MaxPool", s.x, count=2, **attrs)
    form = windows(s, s.node.attrs["kernel_shape"])
    in_one_window = [extent <= stride for extent, stride in zip(form.extents, form.strides, strict=True)]
    return scatter(s, places, distinct=all(in_one_window))


def average_pool(s: Step) -> gs.Tensor:
    """AveragePool: every channel is a separate image, with a kernel of ones."""
    form = windows(s, s.node.attrs["kernel_shape"])
    rank = len(form.kernel)
    ones = np.ones([1, 1, *form.kernel], np.float32)
    shares = _shares(s, form, ones)
    single = s("Concat", [-1, 1], s.axes_of_shape(s.y, 2, 2 + rank), axis=0)
    return s.reshape(spread(s, s("Reshape", shares, single), ones, form, 1), s.x)


def _shares(s: Step, form: Windows, ones: np.ndarray) -> gs.Tensor:
    """Return the gradient divided by the divisor of each window."""
    padded = any(form.pads) or form.auto_pad.startswith("SAME")
    exceeds = bool(s.attribute("ceil_mode", 0))
    if not exceeds and (not padded or s.attribute("count_include_pad", 0)):
        return s("Mul", s.g, float(1 / np.prod(form.kernel)))
    rank = len(form.kernel)
    spatial = s.axes_of_shape(s.x, 2, 2 + rank)
    image = s("Expand", 1.0, s("Concat", [1, 1], spatial, axis=0))
    more = [stride - 1 if exceeds else 0 for stride in form.strides]
    ends = [end + extra for end, extra in zip(form.pads[rank:], more, strict=True)]
    where = {"pads": form.pads[:rank] + ends} if form.auto_pad == "NOTSET" else {"auto_pad": form.auto_pad}
    count = s("Conv", image, ones, **where, **form.steps)
    if exceeds:
        axes = list(range(2, 2 + rank))
        count = s("Slice", count, [0] * rank, s.axes_of_shape(s.y, 2, 2 + rank), axes)
    part = s("AveragePool", image, **s.node.attrs)  # the elements of a window over its divisor
    return s("Mul", s.g, s("Div", part, count))
