"""Tensors that are rounded for some of their uses, and grids: formats, and the axis of blocks or scales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

import ops
from ops.integers import finite_range
from transforms import features
from transforms.features.hooks import WeightForm
from transforms.graph import dot_products, dtypes
from transforms.graph.dot_products import is_depthwise_transposed
from transforms.graph.qdq import BLOCKS, DEQUANTIZE
from transforms.plan.rounding import Rounding
from transforms.scheme.scheme import AUTO
from transforms.scheme.scheme_values import SPREAD as BY_SPREAD

ACTIVATION, WEIGHT, CONSTANT, BIAS = "activation", "weight", "constant", "bias"
TABLE = "embedding"
"""Role of constants that are stored in a format but take no part in arithmetic."""

SPREAD = 8.0
"""Ratio of two channels' ranges from which ``auto`` gives each its own scale: 3 of the 8 bits."""

_IMAGE_RANK = 4
UNSIGNED = {"int2": "uint2", "int4": "uint4"}
"""Formats with few bits, and their variants with zero points."""

_WIDER = {"int2": "int4", "uint2": "uint4"}
QUANTIZED_BY = DEQUANTIZE | {*BLOCKS}


@dataclass(frozen=True)
class QuantSpec:
    """A grid: the format, the axis of its blocks or of a scale per channel, symmetry of its range.

    ``block`` is the size of blocks of integers, 0 for none; a block format has its own. ``method``: how the
    scale of a weight is found, if a rule says so. ``form``: how a feature stores a weight that no dot
    product reads. ``pairs``: the axes of each sum over an int8 weight whose adjacent products must not
    saturate (:mod:`ops.pair_sums`), empty where they may.
    """

    format: ops.Format
    axis: int | None = None
    symmetric: bool = True
    block: int = 0
    method: str = AUTO
    form: WeightForm | None = None
    pairs: tuple[tuple[int, ...], ...] = ()

    @property
    def needs_range(self) -> bool:
        """Whether the grid depends on a measured range."""
        return self.format.is_integer


@dataclass
class QuantSite(Rounding):
    """A tensor that is put on one grid, or on several in sequence, for some of its uses."""

    steps: tuple[QuantSpec, ...] = ()
    role: str = ACTIVATION


def role_of(node: gs.Node, index: int) -> str:
    """Return the role of an input: one of the roles above."""
    if not isinstance(node.inputs[index], gs.Constant):
        return ACTIVATION
    form = features.weights_of(node)
    if form is not None and form.is_weight(node, index):
        return WEIGHT
    if not dot_products.is_dot_product(node):
        return CONSTANT
    if not dot_products.is_operand(node, index):
        return BIAS
    return WEIGHT if index == dot_products.weight_index(node) else ACTIVATION


def saturates(fmt: ops.Format) -> bool:
    """Return whether our operators round an infinity to the largest number of a float type."""
    return fmt.is_float and fmt.name == "float16"


def is_unquantized_float(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is float32, has elements and is not on a grid already."""
    if tensor.is_empty() or not dtypes.is_type(tensor, dtypes.FLOAT):
        return False
    if tensor.shape is not None and 0 in tensor.shape:
        return False
    return not any(node.op in QUANTIZED_BY for node in tensor.inputs)


def scale_axis(node: gs.Node, index: int, weight: gs.Constant, per_channel: bool | str) -> int | None:
    """Return the axis along which a weight has a scale per channel, None for a single scale.

    ``per_channel`` may be ``spread``: a scale per channel if their ranges differ by :data:`SPREAD` or more;
    ``auto`` means the same until outputs have decided.
    """
    axis = dot_products.channel_axis(node, index, len(weight.shape))
    if index == 1 and is_depthwise_transposed(node.op, node.attrs.get("group", 1), weight.shape):
        axis = 0
    if not per_channel or axis is None or (per_channel in (AUTO, BY_SPREAD) and not _is_spread(weight, axis)):
        return None
    return axis


def scale_block_axis(node: gs.Node, index: int, weight: gs.Constant, block: int) -> int | None:
    """Return the axis along which a weight's integers have a scale for each block, None if they cannot.

    That is the axis of the sum. It must be at least one block long, and must not belong to several groups of
    a ConvTranspose, or to the data of a convolution.
    """
    grouped = node.op == "ConvTranspose" and node.attrs.get("group", 1) != 1
    if not block or grouped or (node.op in ("Conv", "ConvTranspose") and index != 1):
        return None
    axis = dot_products.sum_axis(node, index, len(weight.shape))
    return axis if weight.shape[axis] >= block else None


def wider(fmt: ops.Format, node: gs.Node, index: int, weight: gs.Constant) -> ops.Format:
    """Return the format of a weight, with 4 bits instead of 2 where ONNX Runtime would compute wrongly.

    Version 1.32 replaces a MatMul or Gemm with a dequantized matrix by a MatMulNBits, for which it
    transposes the matrix: wrongly with 2 bits, unless 4 divides the number of columns.
    """
    last = len(weight.shape) - 1
    is_wrong = fmt.name in _WIDER and dot_products.channel_axis(node, index, last + 1) == last
    return ops.get_format(_WIDER[fmt.name]) if is_wrong and weight.shape[last] % 4 else fmt


def _is_spread(weight: gs.Constant, axis: int) -> bool:
    """Return whether the ranges of a weight's channels differ too much for a single scale."""
    low, high = finite_range(np.asarray(weight.values, np.float32), axis)
    ranges = np.maximum(-low, high)
    live = ranges[ranges > 0]
    return bool(live.size) and float(live.max()) >= SPREAD * float(live.min())


def block_axis(node: gs.Node | None, index: int, tensor: gs.Tensor) -> int:
    """Return the axis of the sum if a dot product reads the tensor, else that of channels."""
    rank = None if tensor.shape is None else len(tensor.shape)
    if node is not None and dot_products.is_dot_product(node) and dot_products.is_operand(node, index):
        return dot_products.sum_axis(node, index, rank)
    if not rank:
        return -1
    return 1 if rank >= _IMAGE_RANK else rank - 1
