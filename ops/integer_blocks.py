"""Integers with a scale for each block of numbers along one axis, as in ONNX from opset 21 on.

An array of shape (.., D, ..) has scales of shape (.., ceil(D / block), ..), with the same other dimensions:
the last block may be shorter. The arithmetic is that of :mod:`ops.integers`, with a row for each block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float32Array, QParams
from ops.block_scales import range_block_parameters, signed_block_scales
from ops.formats import Format
from ops.integers import Integers, dequantize, finite_range, quantize, range_scale, weight_scale


def scale_shape(shape: tuple[int, ...], axis: int, block: int) -> tuple[int, ...]:
    """Return the shape of the scales of an array with blocks along an axis."""
    return tuple(-(-size // block) if i == axis % len(shape) else size for i, size in enumerate(shape))


def block_rows(x: NDArray[Any], axis: int, block: int) -> NDArray[Any]:
    """Return an array as rows, one for each block in the order of the scales, padded with zeros."""
    moved = np.moveaxis(x, axis, -1)
    pad = [(0, 0)] * (moved.ndim - 1) + [(0, -moved.shape[-1] % block)]
    padded = np.pad(moved, pad) if pad[-1][1] else moved
    cut = padded.reshape(*moved.shape[:-1], -1, block)
    return np.ascontiguousarray(np.moveaxis(cut, -2, axis % x.ndim)).reshape(-1, block)


def _from_rows(rows: NDArray[Any], shape: tuple[int, ...], axis: int, block: int) -> NDArray[Any]:
    """Undo ``block_rows`` for an array of a shape."""
    cut = rows.reshape(*scale_shape(shape, axis, block), block)
    joined = np.moveaxis(cut, axis % len(shape), -2).reshape(*np.delete(shape, axis), -1)
    return np.ascontiguousarray(np.moveaxis(joined[..., : shape[axis]], -1, axis))


def quantize_blocks(
    x: NDArray[np.floating], parameters: QParams, fmt: Format, axis: int, block: int
) -> Integers:
    """Return integers in the shape of ``x``; scale and zero point have that of ``scale_shape``."""
    scale, zero_point = (part.reshape(-1) for part in parameters)
    return _from_rows(quantize(block_rows(x, axis, block), scale, zero_point, fmt, 0), x.shape, axis, block)


def dequantize_blocks(q: Integers, parameters: QParams, axis: int, block: int) -> Float32Array:
    """Return the numbers of integers; the arguments are as in ``quantize_blocks``."""
    scale, zero_point = (part.reshape(-1) for part in parameters)
    return _from_rows(dequantize(block_rows(q, axis, block), scale, zero_point, 0), q.shape, axis, block)


def pack_numbers(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack numbers of 8, 4, 2 or 1 bits in bytes, adjacent ones of a row together, first in the low bits."""
    if bits == 8:
        return np.ascontiguousarray(numbers)
    together = 8 // bits
    rest = -numbers.shape[-1] % together
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, rest)]) if rest else numbers
    packed = padded[..., ::together].copy()
    for i in range(1, together):
        packed |= padded[..., i::together] << np.uint8(bits * i)
    return packed


def block_parameters(
    w: NDArray[np.floating],
    fmt: Format,
    axis: int,
    block: int,
    *,
    symmetric: bool,
    method: str = "MinMax",
    importance: NDArray[np.floating] | None = None,
) -> QParams:
    """Return scale and zero point of each block of a weight.

    MinMax: the scale of ops.integers.weight_scale, or the range of the block if not ``symmetric``. MSE:
    those of ops.block_scales, where the scale of signed integers may be negative. Raises ValueError for
    another method.
    """
    rows, shape = block_rows(np.asarray(w, np.float32), axis, block), scale_shape(w.shape, axis, block)
    counts = None if importance is None else block_rows(np.broadcast_to(importance, w.shape), axis, block)
    parameters: tuple[AnyArray, AnyArray]
    if method == "MSE" and symmetric and fmt.is_signed:
        scale = signed_block_scales(rows, fmt, counts)
        parameters = scale, np.zeros(scale.shape, fmt.dtype)
    elif method == "MSE" and not symmetric:
        parameters = range_block_parameters(rows, fmt, counts)
    elif symmetric:
        scale = weight_scale(rows, fmt, 0, method=method, importance=counts)
        parameters = scale, np.zeros(scale.shape, fmt.dtype)
    else:
        parameters = range_scale(*finite_range(rows, 0), fmt, symmetric=False)
    return parameters[0].reshape(shape), parameters[1].reshape(shape)
