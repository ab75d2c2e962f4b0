"""The native kernels in readable NumPy: the specification of every format as code, and an oracle.

Block formats work in float64, where scaling by powers of two and rounding 24-bit numbers is exact.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.elements import ELEMENTS, Element
from ops.subnormals import keeps_subnormals

HALF_AWAY, HALF_UP, HALF_EVEN = 0, 1, 2
LEAST_EXPONENT = -127  # of zeros and of float32's subnormal numbers


@keeps_subnormals
def bfloat16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded half to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16).reshape(np.shape(x))


@keeps_subnormals
def quantize_linear(
    x: NDArray[np.float32], scale: NDArray[np.float32], zero_point: NDArray[Any], axis: int = 0
) -> NDArray[Any]:
    """ExtendedQuantizeLinear: x / scale + zero_point, rounded half to even and in the type of zero_point."""
    factor, zero_point = _along(scale, x.ndim, axis), _along(zero_point, x.ndim, axis)
    with np.errstate(all="ignore"):
        ratio = x / factor
    if zero_point.dtype.kind in "iu":
        return _saturate(ratio, zero_point)
    with np.errstate(all="ignore"):
        shifted = ratio - (np.float32(0) - zero_point.astype(np.float32))
        if zero_point.dtype == np.float16:
            return np.clip(shifted, -65504, 65504).astype(np.float16)
    return bfloat16_bits(shifted).view(ml_dtypes.bfloat16)


@keeps_subnormals
def dequantize_linear(
    y: NDArray[Any], scale: NDArray[np.float32], zero_point: NDArray[Any], axis: int = 0
) -> NDArray[np.float32]:
    """ExtendedDequantizeLinear: (y - zero_point) * scale in float32; integers are subtracted exactly."""
    wide = np.int64 if y.dtype.kind in "iu" else np.float32
    factor, zero_point = _along(scale, y.ndim, axis), _along(zero_point, y.ndim, axis)
    with np.errstate(all="ignore"):
        return (y.astype(wide) - zero_point.astype(wide)).astype(np.float32) * factor


@keeps_subnormals
def bfp(
    x: NDArray[np.float32],
    axis: int,
    *,
    bit_width: int = 16,
    block_size: int = 8,
    rounding_mode: int = HALF_AWAY,
    compiler: bool = False,
) -> NDArray[np.float32]:
    """Block floating point: one exponent E per block, elements are multiples of 2^(E-m+1), m = bit_width - 9.

    ``compiler``: two's complement, as on the target machine. Instead of a clamp at 2^m - 1 steps the
    exponent of the block grows by one when an element needs 2^m steps.
    """
    blocks, finite, m = *finite_blocks(x, axis, block_size), bit_width - 9
    e = exponents(finite).max(-1, keepdims=True)
    if compiler:
        needs = round_half(finite * 2.0 ** (m - 1 - e), rounding_mode).max(-1, keepdims=True)
        e = e + (needs >= 2**m)
    step = 2.0 ** (e - m + 1)
    low, high = (-(2**m), 2**m - 1) if compiler else (1 - 2**m, 2**m - 1)
    y = np.clip(round_half(finite / step, rounding_mode), low, high) * step
    return join_blocks(np.where(np.isfinite(blocks), y, blocks), x, axis)


@keeps_subnormals
def microexponent(
    x: NDArray[np.float32],
    axis: int,
    *,
    bit_width: int = 16,
    block_size: int = 16,
    sub_block_size: int = 2,
    shift_bits: int = 1,
    rounding_mode: int = HALF_AWAY,
) -> NDArray[np.float32]:
    """Microexponents (arXiv 2302.08007): a block exponent, lowered by up to 2^shift_bits - 1 in a sub-block.

    Subnormal float32 numbers become zero, one Inf or NaN makes its whole block NaN.
    """
    blocks, finite, m = *finite_blocks(x, axis, block_size), bit_width - 9
    finite = np.where(np.abs(finite) < 2.0**-126, 0 * finite, finite)
    groups = finite.reshape(*finite.shape[:-1], block_size // sub_block_size, sub_block_size)
    e_sub = exponents(groups).max(-1, keepdims=True)
    e = e_sub.max(-2, keepdims=True)
    shift = np.minimum(e - e_sub, 2**shift_bits - 1)
    step = 2.0 ** (e - shift + 1 - m)
    y = (np.clip(round_half(groups / step, rounding_mode), 1 - 2**m, 2**m - 1) * step).reshape(blocks.shape)
    poisoned = ~np.isfinite(blocks).all(-1, keepdims=True)
    return join_blocks(np.where(poisoned, np.nan, y), x, axis)


@keeps_subnormals
def microscaling(
    x: NDArray[np.float32],
    axis: int,
    *,
    element_dtype: str = "int8",
    block_size: int = 32,
    rounding_mode: int = HALF_AWAY,
    scale_rule: str = "floor",
) -> NDArray[np.float32]:
    """OCP Microscaling: elements of an 8-, 6- or 4-bit type times a power of two per block. They saturate."""
    element = ELEMENTS[element_dtype]
    blocks, finite = finite_blocks(x, axis, block_size)
    scale = 2.0 ** (block_exponents(finite, element, scale_rule) - element.largest_exponent)
    y = round_to_element(finite / scale, element, rounding_mode) * scale
    return join_blocks(np.where(np.isfinite(blocks), y, blocks), x, axis)


@keeps_subnormals
def round_to_element(v: Float64Array, element: Element, rounding_mode: int = HALF_AWAY) -> Float64Array:
    """Round finite numbers to the grid of an element type and saturate; floats round half to even."""
    if element.exponent_bits == 0:
        return np.clip(round_half(v * 64, rounding_mode), -128, 127) / 64
    step = 2.0 ** (np.maximum(np.frexp(v)[1] - 1, 1 - element.bias) - element.mantissa_bits)
    return np.copysign(np.clip(np.rint(v / step) * step, -element.largest, element.largest), v)


@keeps_subnormals
def block_exponents(blocks: Float64Array, element: Element, scale_rule: str) -> Float64Array:
    """Return the exponent of each block's largest magnitude, or the one chosen by another scale rule."""
    largest = np.abs(blocks).max(-1, keepdims=True)
    e = exponents(largest)
    fraction = largest / 2.0**e  # in [1, 2), or below 1 if e is the least exponent
    if scale_rule == "ceil":
        return e + (fraction > 1)
    if scale_rule == "even":
        return e + (np.rint(fraction * 2.0**element.mantissa_bits) >= 2.0 ** (element.mantissa_bits + 1))
    if scale_rule == "rceil":
        return e + (fraction > element.largest / 2.0**element.largest_exponent)
    return e


@keeps_subnormals
def exponents(x: Float64Array) -> Float64Array:
    """Return floor(log2 |x|), exact, and at least -127."""
    return np.where(x == 0, LEAST_EXPONENT, np.maximum(np.frexp(x)[1] - 1, LEAST_EXPONENT)).astype(np.float64)


@keeps_subnormals
def round_half(x: Float64Array, mode: int) -> Float64Array:
    """Round to integers, ties away from zero, toward +inf or to even. The sign of x is kept on zeros."""
    if mode == HALF_EVEN:
        return np.rint(x)
    rounded = np.floor(np.abs(x) + 0.5) if mode == HALF_AWAY else np.abs(np.floor(x + 0.5))
    return np.copysign(rounded, x)


def _saturate(ratio: NDArray[np.float32], zero_point: NDArray[Any]) -> NDArray[Any]:
    limits = np.iinfo(zero_point.dtype)
    rounded = np.rint(np.nan_to_num(ratio.astype(np.float64), nan=0.0, posinf=1e30, neginf=-1e30))
    return np.clip(rounded + zero_point.astype(np.float64), limits.min, limits.max).astype(zero_point.dtype)


def _along(values: NDArray[Any], rank: int, axis: int) -> NDArray[Any]:
    """Reshape one value, or one per channel, to broadcast against a tensor."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)


@keeps_subnormals
def finite_blocks(x: NDArray[np.float32], axis: int, block_size: int) -> tuple[Float64Array, Float64Array]:
    """Return a tensor cut into blocks [..., number, block_size] along an axis, padded with zeros, in float64.

    The second result has zeros for Inf and NaN.
    """
    with np.errstate(invalid="ignore"):  # signalling NaNs
        last = np.moveaxis(x, axis, -1).astype(np.float64)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[axis] % block_size)]
    blocks = np.pad(last, padding).reshape(*last.shape[:-1], -1, block_size)
    return blocks, np.where(np.isfinite(blocks), blocks, 0.0)


@keeps_subnormals
def join_blocks(blocks: Float64Array, like: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Return such blocks as a float32 tensor like the original."""
    length = like.shape[axis]
    fibres = blocks.reshape(*blocks.shape[:-2], -1)[..., :length]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.moveaxis(fibres, -1, axis).astype(np.float32)
