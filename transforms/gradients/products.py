"""Gradients of dot products: of the data of convolutions, of both operands of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from transforms.gradients.step import NoRuleError, Step
from transforms.graph import shapes

_SAME = ("SAME_UPPER", "SAME_LOWER")
_MATRIX = 2
_BEFORE_FIRST = -(2**31)  # end of a backward Slice that includes the first element


@dataclass(frozen=True)
class Windows:
    """The geometry of the windows of a convolution or pooling, for each spatial axis."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    auto_pad: str

    @property
    def extents(self) -> list[int]:
        """The extent of a window, gaps included."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def steps(self) -> dict[str, list[int]]:
        """The attributes that place the taps of a window."""
        return {"kernel_shape": self.kernel, "strides": self.strides, "dilations": self.dilations}


def windows(s: Step, kernel: Sequence[int]) -> Windows:
    """Return the windows of a node with the given kernel."""
    rank, auto_pad = len(kernel), str(s.attribute("auto_pad", "NOTSET"))
    pads = s.attribute("pads", None) if auto_pad == "NOTSET" else None
    return Windows(
        list(kernel),
        list(s.attribute("strides", None) or [1] * rank),
        list(s.attribute("dilations", None) or [1] * rank),
        list(pads or [0] * (2 * rank)),
        auto_pad,
    )


def spread(s: Step, value: gs.Tensor, weight: gs.Tensor | np.ndarray, form: Windows, group: int) -> gs.Tensor:
    """Return gradients of window taps to their places: a transposed convolution to the spatial size of x."""
    pads = _exact_pads(s, form)
    if pads is not None:
        ends = pads[len(form.kernel) :]
        extra = [max(-end, 0) for end in ends]
        pads = [max(pad, 0) for pad in pads]
        return s("ConvTranspose", value, weight, group=group, pads=pads, output_padding=extra, **form.steps)
    extra = [stride - 1 for stride in form.strides]
    whole = s("ConvTranspose", value, weight, group=group, output_padding=extra, **form.steps)
    spatial = s.axes_of_shape(s.x, 2, 2 + len(form.kernel))
    begin = _begin(s, form, spatial)
    axes = list(range(2, 2 + len(form.kernel)))
    return s("Slice", whole, begin, s("Add", begin, spatial), axes)


def _exact_pads(s: Step, form: Windows) -> list[int] | None:
    """Return the pads that give the size of x; negative ones at the end are padding of the output.

    None if they depend on sizes that are not known.
    """
    rank, begins = len(form.kernel), form.pads[: len(form.kernel)]
    if _is_dense(s, form):
        whole, read = [extent - 1 for extent in form.extents], [0] * rank
        if form.auto_pad not in _SAME:
            return form.pads
    else:
        made, fixed = s.fixed_sizes(s.y, 2), s.fixed_sizes(s.x, 2)
        if made is None or fixed is None:
            return None
        whole = [(n - 1) * step + e for n, step, e in zip(made, form.strides, form.extents, strict=True)]
        read = fixed
    if form.auto_pad in _SAME:
        totals = [max(a - b, 0) for a, b in zip(whole, read, strict=True)]
        begins = [t // 2 if form.auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
    return begins + [w - b - n for w, b, n in zip(whole, begins, read, strict=True)]


def _is_dense(s: Step, form: Windows) -> bool:
    """Return whether windows have no gaps, so that the remainder does not depend on a size."""
    return all(stride == 1 for stride in form.strides) and not s.attribute("ceil_mode", 0)


def _begin(s: Step, form: Windows, spatial: object) -> gs.Tensor | list[int]:
    """Return the padding before each axis, computed at run time if it depends on sizes."""
    rank = len(form.kernel)
    if form.auto_pad not in _SAME:
        return form.pads[:rank]
    made = s.axes_of_shape(s.y, 2, 2 + rank)
    fixed = [e - stride for e, stride in zip(form.extents, form.strides, strict=True)]
    whole = s("Add", s("Mul", made, form.strides), fixed)
    total = s("Max", s("Sub", whole, spatial), [0] * rank)
    half = s("Div", total, [2] * rank)
    return half if form.auto_pad == "SAME_UPPER" else s("Sub", total, half)


def convolution(s: Step) -> gs.Tensor:
    """Conv, for its data: the transposed convolution with the same weight.

    Without strides that is a plain convolution with the mirrored weight, for which the runtime has faster
    kernels; a constant weight is mirrored when the session is created.
    """
    weight, group = s.node.inputs[1], s.attribute("group", 1)
    form = windows(s, _kernel(s, weight))
    pads, sizes = (_exact_pads(s, form) if _is_dense(s, form) else None), s.fixed_sizes(weight)
    if (
        pads is None
        or sizes is None
        or any(pad >= extent for pad, extent in zip(pads, form.extents * 2, strict=True))
    ):
        return spread(s, s.g, weight, form, group)
    left = [extent - 1 - pad for pad, extent in zip(pads, form.extents * 2, strict=True)]
    return s("Conv", s.g, _turned_around(s, weight, sizes, form, group), group=group, pads=left, **form.steps)


def _turned_around(s: Step, weight: gs.Tensor, sizes: Sequence[int], form: Windows, group: int) -> gs.Tensor:
    """Return a weight mirrored along its spatial axes, with inputs and outputs of each group exchanged."""
    wide = [axis for axis, size in enumerate(form.kernel, 2) if size > 1]
    if wide:
        count = len(wide)
        weight = s("Slice", weight, [-1] * count, [_BEFORE_FIRST] * count, wide, [-1] * count)
    if group == 1:
        return s("Transpose", weight, perm=[1, 0, *range(2, 2 + len(form.kernel))])
    made, read = sizes[0] // group, sizes[1]
    if made == read == 1:
        return weight
    apart = s("Reshape", weight, [group, made, read, *form.kernel])
    exchanged = s("Transpose", apart, perm=[0, 2, 1, *range(3, 3 + len(form.kernel))])
    return s("Reshape", exchanged, [group * read, made, *form.kernel])


def transposed_convolution(s: Step) -> gs.Tensor:
    """ConvTranspose, for its data: the convolution with the same weight."""
    weight = s.node.inputs[1]
    form = windows(s, _kernel(s, weight))
    extra = list(s.attribute("output_padding", None) or [0] * len(form.kernel))
    pads = form.pads
    if form.auto_pad in _SAME or s.attribute("output_shape", None):
        pads = _computed_pads(s, form, extra)
    return s("Conv", s.g, weight, group=s.attribute("group", 1), pads=pads, **form.steps)


def _computed_pads(s: Step, form: Windows, extra: Sequence[int]) -> list[int]:
    """Return the pads of a transposed convolution for a given size of its output."""
    made, read = s.fixed_sizes(s.y, 2), s.fixed_sizes(s.x, 2)
    if made is None or read is None:
        raise NoRuleError("its padding depends on sizes that are not fixed")
    whole = [
        (n - 1) * stride + more + extent - size
        for n, stride, more, extent, size in zip(read, form.strides, extra, form.extents, made, strict=True)
    ]
    if min(whole) < 0:
        raise NoRuleError("its output extends beyond its windows")
    begins = [t // 2 if form.auto_pad == "SAME_UPPER" else t - t // 2 for t in whole]
    return begins + [t - b for t, b in zip(whole, begins, strict=True)]


def _kernel(s: Step, weight: gs.Tensor) -> list[int]:
    kernel = s.attribute("kernel_shape", None) or s.fixed_sizes(weight, 2)
    if not kernel:
        raise NoRuleError(f"the size of its kernel '{weight.name}' is not fixed")
    return list(kernel)


def gemm(s: Step) -> gs.Tensor:
    """Gemm, for its three inputs."""
    if s.index == _MATRIX:
        beta = float(s.attribute("beta", 1.0))
        return s.summed(s.g if beta == 1 else s("Mul", s.g, beta))
    a, b = s.node.inputs[:2]
    alpha = float(s.attribute("alpha", 1.0))
    turned_a, turned_b = s.attribute("transA", 0), s.attribute("transB", 0)
    if s.index == 0 and not turned_a:
        return s("Gemm", s.g, b, alpha=alpha, transB=1 - turned_b)
    if s.index == 0:
        return s("Gemm", b, s.g, alpha=alpha, transA=turned_b, transB=1)
    if not turned_b:
        return s("Gemm", a, s.g, alpha=alpha, transA=1 - turned_a)
    return s("Gemm", s.g, a, alpha=alpha, transA=1, transB=turned_a)


def matmul(s: Step) -> gs.Tensor:
    """MatMul, for both operands: vectors, matrices and stacks of them."""
    a, b = s.node.inputs
    ranks = s.rank(a), s.rank(b)
    if ranks[0] >= _MATRIX and ranks[1] == _MATRIX:
        return _times_matrix(s)
    g = s.g
    left, right = _matrix(s, a, 0), _matrix(s, b, 1)
    if ranks[1] == 1:
        g = s("Unsqueeze", g, [-1])
    if ranks[0] == 1:
        g = s("Unsqueeze", g, [-2])
    if s.index == 0:
        full, operand = s("MatMul", g, _turned(s, right)), left
    else:
        full, operand = s("MatMul", _turned(s, left), g), right
    stack = shapes.shape_of(s.y)
    if stack is not None:
        stack = (*stack[: len(stack) - sum(rank > 1 for rank in ranks)], *s.sizes(operand)[-_MATRIX:])
    summed = s.summed(full, operand, stack)
    return s.reshape(summed, s.wanted) if ranks[s.index] == 1 else summed


def _matrix(s: Step, operand: gs.Tensor, axis: int) -> gs.Tensor:
    """Return the operand, a vector as a matrix with a new axis."""
    sizes = s.sizes(operand)
    if len(sizes) > 1:
        return operand
    made = s("Unsqueeze", operand, [axis])
    made.shape = [1, *sizes] if axis == 0 else [*sizes, 1]
    return made


def _turned(s: Step, matrices: gs.Tensor) -> gs.Tensor:
    rank = s.rank(matrices)
    return s("Transpose", matrices, perm=[*range(rank - 2), rank - 1, rank - 2])


def _times_matrix(s: Step) -> gs.Tensor:
    """The second operand is a matrix: all rows of the first form one matrix, and nothing is transposed."""
    a, b = s.node.inputs
    rows = s("Flatten", s.g, axis=-1)
    if s.index == 0:
        return s.reshape(s("Gemm", rows, b, transB=1), a)
    return s("Gemm", s("Flatten", a, axis=-1), rows, transA=1)
