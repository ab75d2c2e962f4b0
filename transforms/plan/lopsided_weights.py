"""Weights whose blocks are so asymmetric around 0 that zero points reduce their rounding error."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from ops import FORMATS
from ops.array_types import Float32Array
from ops.integer_blocks import block_parameters, block_rows, dequantize_blocks, quantize_blocks
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constants import load

_BLOCK = 32
_MOST = 512
"""Blocks of a weight to examine, spread evenly."""


def lopsided_weights(graph: gs.Graph) -> Iterator[int]:
    """Yield the ids of weights of products that have a smaller squared error in uint4 than in int4.

    Both use blocks of 32 numbers along the axis of the sum, for a part of the weight.
    """
    seen = set[int]()
    for node in walk.nodes(graph):
        index = dot_products.weight_index(node) if dot_products.is_dot_product(node) else None
        if index is None or id(weight := node.inputs[index]) in seen:
            continue
        seen.add(id(weight))
        is_matrix = len(weight.shape) > 1 and 0 not in weight.shape and dtypes.is_type(weight, dtypes.FLOAT)
        if is_matrix and _is_lopsided(weight, dot_products.sum_axis(node, index, len(weight.shape))):
            yield id(weight)


def _is_lopsided(weight: gs.Constant, axis: int) -> bool:
    if weight.shape[axis] < _BLOCK:
        return False
    values = np.moveaxis(np.asarray(load(weight)), axis, -1).reshape(-1, weight.shape[axis])
    blocks = values.shape[-1] // _BLOCK
    places = np.unique(np.linspace(0, len(values) * blocks - 1, _MOST).astype(np.int64))
    columns = (places % blocks * _BLOCK)[:, None] + np.arange(_BLOCK)
    rows = block_rows(np.asarray(values[(places // blocks)[:, None], columns], np.float32), 1, _BLOCK)
    return _error(rows, "uint4") < _error(rows, "int4")


def _error(rows: Float32Array, name: str) -> float:
    """Return the squared error of blocks in a format, with a zero point if the format is unsigned."""
    fmt = FORMATS[name]
    grid = block_parameters(rows, fmt, 1, _BLOCK, symmetric=fmt.is_signed, method="MSE")
    rounded = dequantize_blocks(quantize_blocks(rows, grid, fmt, 1, _BLOCK), grid, 1, _BLOCK)
    return float(np.square(rows - rounded, dtype=np.float64).sum())
