"""Dot products, the operators for which low-precision formats are made, and the axes of their sums.

The same table serves block formats (the axis of the sum), per-channel scales (the other axis), and the
storage of biases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS, onnx_op

DOT_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

TensorAxis = tuple[str, int]
"""The name of a tensor and the axis of its channels: layers may read a tensor along different axes."""

_BIAS = 2
_CONVOLUTIONS = {"Conv": (1, 1, 0), "ConvTranspose": (1, 0, 1)}
"""Axis of the sum in the data and in the weight, axis of output channels in the weight."""

_MATRIX_RANK = 2


def is_dot_product(node: gs.Node) -> bool:
    """Return whether the node is a dot product of standard ONNX."""
    return node.op in DOT_PRODUCTS and node.domain in STANDARD_DOMAINS


def is_operand(node: gs.Node, index: int) -> bool:
    """Return whether an input of a dot product is one of its two factors."""
    return index < _BIAS


def weight_index(node: gs.Node) -> int | None:
    """Return the index of a dot product's constant operand, the second if both are, or None."""
    return next((i for i in (1, 0) if i < len(node.inputs) and isinstance(node.inputs[i], gs.Constant)), None)


def bias(node: gs.Node) -> gs.Tensor | None:
    """Return the bias of a dot product, or None if it has none."""
    if len(node.inputs) <= _BIAS or node.inputs[_BIAS].is_empty():
        return None
    return node.inputs[_BIAS]


def sum_axis(node: gs.Node, index: int, rank: int | None) -> int:
    """Return the axis of an operand over which the product sums; blocks run along it.

    MatMul: the last axis of the first operand, the second last of the second. Gemm: the same, transposed by
    its attributes. Conv: the input channels of both; in ConvTranspose's weight they are axis 0. Counted from
    the end if the rank is unknown.
    """
    if node.op in _CONVOLUTIONS:
        return _CONVOLUTIONS[node.op][index]
    if rank == 1:
        return 0
    transposed = node.op == "Gemm" and bool(node.attrs.get("transB" if index else "transA", 0))
    return (rank or 0) - (1 if (index == 0) != transposed else 2)


def pair_axes(node: gs.Node, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes of a second operand in the order in which an integer kernel sums, fastest last.

    A convolution sums position by position, over the channels of a group at each. Empty for a depthwise
    convolution, which adds in 32 bits, and for ConvTranspose, which has no such kernel
    (:mod:`ops.pair_sums`).
    """
    rank = len(shape)
    if node.op not in _CONVOLUTIONS:
        return (sum_axis(node, 1, rank),)
    is_depthwise = shape[0] == node.attrs.get("group", 1) and shape[1] == 1
    return () if node.op == "ConvTranspose" or is_depthwise else (*range(2, rank), 1)


def channel_axis(node: gs.Node, index: int, rank: int) -> int | None:
    """Return the axis of an operand along which each output channel has its own numbers, or None.

    The rows of the first operand of MatMul and Gemm, the columns of the second, transposed by Gemm's
    attributes. None for the data of a convolution; for the weight of a grouped ConvTranspose, each of whose
    indices belongs to a channel of every group; and for a vector or a stack of matrices, for which ONNX
    Runtime accepts a single scale.
    """
    if node.op in _CONVOLUTIONS:
        grouped = node.op == "ConvTranspose" and node.attrs.get("group", 1) != 1
        return None if grouped or index != 1 else _CONVOLUTIONS[node.op][2]
    return None if rank != _MATRIX_RANK else 1 - sum_axis(node, index, rank)


def is_depthwise_transposed(op: str, group: int, shape: Sequence[int]) -> bool:
    """Return whether a ConvTranspose has one input and one output in each group, both along axis 0."""
    return op == "ConvTranspose" and group > 1 and tuple(shape[:2]) == (group, 1)


def along_inputs(
    node: gs.Node, index: int, shape: tuple[int, ...], numbers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Lay out one number per input channel along the axis of the sum, and groups along the outputs.

    ``shape`` is the shape of the operand at ``index``, to which the result broadcasts.
    """
    axis = sum_axis(node, index, len(shape))
    groups = int(node.attrs.get("group", 1))
    if node.op == "Conv" and index == 0:  # stored data with fed filters: the axis is that of each group
        numbers = np.tile(numbers, groups)
    elif node.op == "Conv" and groups > 1:
        of_outputs = np.repeat(numbers.reshape(groups, -1), shape[0] // groups, axis=0)
        return of_outputs.reshape(*of_outputs.shape, *[1] * (len(shape) - 2))
    return numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def products_behind(tensors: Iterable[gs.Tensor], between: Collection[str]) -> dict[int, gs.Node]:
    """Return by id the dot products from which tensors are computed through operators in ``between``."""
    tensors = list(tensors)
    passed = walk.makers(tensors, lambda node: onnx_op(node) in between)
    read = [tensor for node in passed.values() for tensor in walk.computed_inputs(node)]
    first = {id(node): node for start in (*tensors, *read) if (node := walk.producer(start)) is not None}
    return {key: node for key, node in first.items() if is_dot_product(node)}


def is_of_outliers(node: gs.Node) -> bool:
    """Return whether a node is the narrow product written by :func:`transforms.move_outliers`.

    It multiplies channels of a tensor selected by a Gather with constant indices, and an Add adds its result
    to that of a layer on the same tensor, in which a Mul by constants sets those channels to 0.
    """
    gather, users = walk.producer(node.inputs[0]), node.outputs[0].outputs
    if node.op != "MatMul" or gather is None or gather.op != "Gather" or gather.attrs.get("axis", 0) != -1:
        return False
    if len(users) != 1 or users[0].op != "Add" or not isinstance(gather.inputs[1], gs.Constant):
        return False
    addends = [walk.producer(t) for t in users[0].inputs if t is not node.outputs[0]]
    main_product = addends[0] if addends else None
    multiply = (
        walk.producer(main_product.inputs[0])
        if main_product is not None and main_product.op in ("MatMul", "Gemm")
        else None
    )
    if multiply is None or multiply.op != "Mul" or multiply.inputs[0] is not gather.inputs[0]:
        return False
    factors = multiply.inputs[1]
    if not isinstance(factors, gs.Constant) or len(factors.shape) != 1:
        return False
    return np.array_equal(np.flatnonzero(factors.values == 0), gather.inputs[1].values)
