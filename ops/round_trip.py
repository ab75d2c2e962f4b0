"""Round arrays to any number format."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ops._library import bfp_grid, microexponent_grid, microscaling_grid, quantize_blocks, round_linear
from ops.formats import FLOAT_TYPES, LINEAR, LINEAR_TYPES, Attributes, Format, get_format
from ops.integers import as_bytes, finite_range, range_scale
from ops.subnormals import keeps_subnormals


@keeps_subnormals
def quantize_dequantize(
    x: NDArray[np.generic],
    format: str | Format,
    axis: int = -1,
    *,
    out: NDArray[np.generic] | None = None,
) -> NDArray[np.generic]:
    """Round an array to a number format: what the format's operators do in a model, by the same native code.

    ``x`` is float32, float16 or bfloat16 of any rank and memory layout; the result (``out``, which may be
    ``x`` or share memory with it in any way) has the same type and shape. Blocks run along ``axis``; other
    formats ignore it. Integers get one scale for the whole array, from its largest finite magnitude (signed)
    or its finite range including zero (unsigned), and give finite numbers of its type. A block format leaves
    an array of exactly one number as it is.

    Raises ValueError for an unknown format, a type that is not a float, an axis out of range, or an
    ``out`` of another type or shape.
    """
    fmt, x = get_format(format), np.asarray(x)
    _check(x, axis, out)
    result = np.empty_like(x) if out is None else out
    order = sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))  # the axes in memory order
    source = np.ascontiguousarray(x.transpose(order))
    target = result.transpose(order)
    dense = target if target.flags.c_contiguous and target.flags.writeable else np.empty_like(source)
    if _overlaps_in_part(source, dense):
        source = source.copy()
    if x.size:
        fibres = order.index(axis % x.ndim) if x.ndim else 0
        rounded = _round_linear if fmt.op == LINEAR else _round_blocks
        rounded(source.reshape(x.transpose(order).shape), dense, fmt, fibres)
    if dense is not target:
        target[...] = dense
    return result


def make_grid(attributes: Attributes) -> bytes:
    """Return the constants of a block format for the native code, given its operator's attributes."""
    if "element_dtype" in attributes:
        return microscaling_grid(
            attributes["block_size"],
            attributes["element_dtype"],
            attributes.get("scale_rule", "floor"),
            attributes["rounding_mode"],
        )
    width = attributes["block_size"], attributes["bit_width"], attributes["rounding_mode"]
    bfloat16_first = bool(attributes.get("convert_to_bfloat_before_bfp", 0))
    if attributes.get("bfp_method", "to_bfp") == "to_bfp":
        compiler = bool(attributes.get("use_compiler_version_cpu_kernel", 0))
        return bfp_grid(*width, compiler, bfloat16_first)
    groups = attributes["sub_block_size"], attributes["sub_block_shift_bits"]
    return microexponent_grid(*width, *groups, bfloat16_first)


def _check(x: NDArray[np.generic], axis: int, out: NDArray[np.generic] | None) -> None:
    if x.dtype not in FLOAT_TYPES:
        legal = ", ".join(map(str, FLOAT_TYPES))
        raise ValueError(f"an array of {x.dtype} cannot be rounded to a number format, legal are {legal}")
    if x.ndim and not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis {axis} is out of range for an array of rank {x.ndim}")
    if out is not None and (out.dtype != x.dtype or out.shape != x.shape):
        raise ValueError(f"out is {out.dtype}{list(out.shape)}, but x is {x.dtype}{list(x.shape)}")
    if out is not None and not out.flags.writeable:
        raise ValueError("out is read-only")


def _overlaps_in_part(x: NDArray[np.generic], y: NDArray[np.generic]) -> bool:
    """Return whether two contiguous arrays of one size share memory with an offset."""
    return np.may_share_memory(x, y) and x.ctypes.data != y.ctypes.data


def _round_blocks(x: NDArray[np.generic], y: NDArray[np.generic], fmt: Format, axis: int) -> None:
    sizes = x.shape[:axis], x.shape[axis : axis + 1], x.shape[axis + 1 :]
    outer, length, inner = (int(np.prod(part)) for part in sizes)
    quantize_blocks(
        as_bytes(x), as_bytes(y), FLOAT_TYPES[x.dtype], outer, length, inner, make_grid(fmt.attributes)
    )


def _round_linear(x: NDArray[np.generic], y: NDArray[np.generic], fmt: Format, axis: int) -> None:
    wide = x.reshape(-1).astype(np.float32, copy=False)
    result = y.reshape(-1) if y.dtype == np.float32 else np.empty_like(wide)
    scale, zero_point = choose_scale(wide, fmt) if fmt.is_integer else (1.0, 0)
    round_linear(wide, result, LINEAR_TYPES[fmt.name], scale, zero_point)
    largest = float(ml_dtypes.finfo(y.dtype).max)
    if fmt.is_integer and (fmt.highest - fmt.lowest) * scale > largest:
        np.clip(result, -largest, largest, out=result)  # an integer may represent more than the type can hold
    if y.dtype != np.float32:
        with np.errstate(over="ignore"):
            y.reshape(-1)[...] = result.astype(y.dtype)


@keeps_subnormals
def choose_scale(x: NDArray[np.float32], fmt: Format) -> tuple[float, int]:
    """Return scale and zero point with which an integer format covers the finite numbers of an array.

    As range_scale: symmetric for signed formats, asymmetric for unsigned ones.
    """
    low, high = finite_range(x)
    scale, zero_point = range_scale(low, high, fmt, symmetric=fmt.is_signed)
    return float(scale), int(zero_point)
