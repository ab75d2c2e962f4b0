"""The one table of number formats, and rounding arrays to any of them.

Adding a format is adding a row. A row names the operator that does the same in a model, and its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ops import _library

Attributes = Mapping[str, Any]  # of a node: integers and strings

LINEAR, BFP, MX = "ExtendedQuantizeLinear", "BFPQuantizeDequantize", "MXQuantizeDequantize"
FLOAT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10, np.dtype(ml_dtypes.bfloat16): 16}
LINEAR_TYPES = {
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "float16": 10,
    "uint32": 12,
    "bfloat16": 16,
}


@dataclass(frozen=True)
class Format:
    """A number format.

    ``bits`` per element include its share of a block's exponents. ``block`` is the number of elements that
    share an exponent (1: none). ``highest`` is the largest number at the largest scale, for integers at
    scale 1.
    """

    name: str
    op: str
    bits: float
    highest: float
    attributes: Attributes = field(default_factory=lambda: MappingProxyType({}))

    @property
    def block(self) -> int:
        """The number of elements that share an exponent."""
        return int(self.attributes.get("block_size", 1))

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers that need a scale."""
        return "int" in self.name and self.op == LINEAR


def _bfp(name: str, bits: float, bit_width: int, block_size: int, **more: Any) -> Format:
    attributes = {"bit_width": bit_width, "block_size": block_size, "rounding_mode": 2, **more}
    return Format(name, BFP, bits, 2.0**128 - 2.0 ** (137 - bit_width), MappingProxyType(attributes))


def _microexponent(name: str, bits: float, bit_width: int) -> Format:
    prime = {"bfp_method": "to_bfp_prime", "sub_block_size": 2, "sub_block_shift_bits": 1}
    return _bfp(name, bits, bit_width, 16, **prime)


def _mx(name: str, bits: float, element_dtype: str, highest: float) -> Format:
    attributes = {"element_dtype": element_dtype, "block_size": 32, "rounding_mode": 2}
    return Format(name, MX, bits, highest * 2.0**127, MappingProxyType(attributes))


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        row.name: row
        for row in (
            Format("int8", LINEAR, 8, 127),
            Format("uint8", LINEAR, 8, 255),
            Format("int16", LINEAR, 16, 32767),
            Format("uint16", LINEAR, 16, 65535),
            Format("int32", LINEAR, 32, 2**31 - 1),
            Format("uint32", LINEAR, 32, 2**32 - 1),
            Format("float16", LINEAR, 16, 65504),
            Format("bfloat16", LINEAR, 16, 3.3895313892515355e38),
            _bfp("bfp16", 9, 16, 8),
            _microexponent("mx4", 4, 11),
            _microexponent("mx6", 6, 13),
            _microexponent("mx9", 9, 16),
            _mx("mxint8", 8.25, "int8", 127 / 64),
            _mx("mxfp8_e4m3", 8.25, "fp8_e4m3", 1.75),
            _mx("mxfp8_e5m2", 8.25, "fp8_e5m2", 1.75),
            _mx("mxfp6_e3m2", 6.25, "fp6_e3m2", 1.75),
            _mx("mxfp6_e2m3", 6.25, "fp6_e2m3", 1.875),
            _mx("mxfp4", 4.25, "fp4_e2m1", 1.5),
        )
    }
)


def get_format(name: str) -> Format:
    """Return the row of the table, or raise ValueError naming all formats."""
    if name not in FORMATS:
        raise ValueError(f"format '{name}' is unknown, legal are {', '.join(FORMATS)}")
    return FORMATS[name]


def quantize_dequantize(
    x: NDArray[np.generic], format: str, axis: int = -1, *, out: NDArray[np.generic] | None = None
) -> NDArray[np.generic]:
    """Round an array to a number format: what the format's operators do in a model, by the same native code.

    ``x`` is float32, float16 or bfloat16 of any rank and memory layout; the result (``out``, which may be
    ``x``) has the same type and shape. Blocks run along ``axis``; other formats ignore it. Integers get one
    scale for the whole array, from its largest finite magnitude (signed) or its finite range including zero
    (unsigned). A block format leaves an array of exactly one number as it is.

    Raises ValueError for an unknown format, a type that is not a float, an axis that is not there, or an
    ``out`` of another type or shape.
    """
    row, x = get_format(format), np.asarray(x)
    _check(x, axis, out)
    result = np.empty_like(x) if out is None else out
    order = sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))  # the axes as they lie in memory
    source = np.ascontiguousarray(x.transpose(order))
    target = result.transpose(order)
    dense = target if target.flags.c_contiguous and target.flags.writeable else np.empty_like(source)
    if x.size:
        fibres = order.index(axis % x.ndim) if x.ndim else 0
        _ROUND[row.op](source.reshape(x.transpose(order).shape), dense, row, fibres)
    if dense is not target:
        target[...] = dense
    return result


def make_grid(attributes: Attributes) -> bytes:
    """Return the constants of a block format for the native code, given its operator's attributes."""
    if "element_dtype" in attributes:
        return _library.microscaling_grid(
            attributes["block_size"],
            attributes["element_dtype"],
            attributes.get("scale_rule", "floor"),
            attributes["rounding_mode"],
        )
    three = attributes["block_size"], attributes["bit_width"], attributes["rounding_mode"]
    if attributes.get("bfp_method", "to_bfp") == "to_bfp":
        return _library.bfp_grid(*three)
    return _library.microexponent_grid(
        *three, attributes["sub_block_size"], attributes["sub_block_shift_bits"]
    )


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


def _round_blocks(x: NDArray[np.generic], y: NDArray[np.generic], row: Format, axis: int) -> None:
    sizes = x.shape[:axis], x.shape[axis : axis + 1], x.shape[axis + 1 :]
    outer, length, inner = (int(np.prod(part)) for part in sizes)
    _library.quantize_blocks(
        _bytes(x), _bytes(y), FLOAT_TYPES[x.dtype], outer, length, inner, make_grid(row.attributes)
    )


def _round_linear(x: NDArray[np.generic], y: NDArray[np.generic], row: Format, axis: int) -> None:
    wide = x.reshape(-1).astype(np.float32, copy=False)
    result = y.reshape(-1) if y.dtype == np.float32 else np.empty_like(wide)
    scale, zero_point = choose_scale(wide, row) if row.is_integer else (1.0, 0)
    _library.round_linear(wide, result, LINEAR_TYPES[row.name], scale, zero_point)
    if y.dtype != np.float32:
        with np.errstate(over="ignore"):
            y.reshape(-1)[...] = result.astype(y.dtype)


def choose_scale(x: NDArray[np.float32], row: Format) -> tuple[float, int]:
    """Return scale and zero point with which an integer format covers the finite numbers of an array.

    Signed: max|x| / highest and 0. Unsigned: (max - min) / highest, and the integer that stands for zero. The
    scale of an array of zeros is 1.
    """
    finite = x[np.isfinite(x)].astype(np.float64)
    low, high = min(finite.min(initial=0.0), 0.0), max(finite.max(initial=0.0), 0.0)
    signed = not row.name.startswith("u")
    span = max(-low, high) if signed else high - low
    scale = float(np.float32(min(span / row.highest, np.finfo(np.float32).max)))
    if scale == 0:
        return 1.0, 0
    return scale, 0 if signed else int(min(round(-low / scale), row.highest))


def _bytes(x: NDArray[np.generic]) -> NDArray[np.uint8]:
    return x.reshape(-1).view(np.uint8)


_ROUND: Mapping[str, Callable[[NDArray[np.generic], NDArray[np.generic], Format, int], None]] = {
    LINEAR: _round_linear,
    BFP: _round_blocks,
    MX: _round_blocks,
}
