"""Weights of Microscaling in ONNX's own element types, with scales of the type float8e8m0."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ops.formats import MX, Format
from transforms.packed.block_layout import BlockLayout
from transforms.packed.codes import Codes, codes_of, encode

NATIVE: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "int8": np.dtype(np.int8),
        "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
        "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
        "fp6_e3m2": np.dtype(ml_dtypes.float6_e3m2fn),
        "fp6_e2m3": np.dtype(ml_dtypes.float6_e2m3fn),
        "fp4_e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    }
)
"""The type of ONNX for each element type."""

SCALE = np.dtype(ml_dtypes.float8_e8m0fnu)
_MOST_SCALE = 254  # 255 is NaN
_OPSETS = {"fp6_e3m2": 28, "fp6_e2m3": 28}

Native = tuple[NDArray[np.generic], NDArray[np.generic]]


def native_codes(fmt: Format) -> Codes | None:
    """Return the codes of a format that ONNX has types for, None for any other."""
    return codes_of(fmt) if fmt.op == MX else None


def least_opset(fmt: Format) -> int:
    """Return the first opset whose QuantizeLinear and DequantizeLinear have a format's types."""
    return _OPSETS.get(str(fmt.attributes["element_dtype"]), 24)


def native_weight(values: NDArray[np.float32], fmt: Format, axis: int) -> Native | None:
    """Return elements, of the shape of a weight, and scales of its blocks along an axis.

    They stand for the same numbers, in int8 up to the sign of zeros. None if there are none: for numbers on
    no such grid, or that need a scale below 2^-127.
    """
    codes = native_codes(fmt)
    if codes is None or values.size < 2:
        return None
    layout = BlockLayout.along(values.shape, axis, fmt.block, 1)
    found = encode(values, codes, layout, least=codes.unit)
    scales = found.exponents.astype(np.int16) - codes.unit
    elements = _elements(values, found.codes, found.places, scales, codes, layout)
    if elements is None or scales.min() < 0 or scales.max() > _MOST_SCALE:
        return None
    axis %= values.ndim
    number = -(-values.shape[axis] // fmt.block)
    of_blocks = (*values.shape[:axis], number, *values.shape[axis + 1 :])
    kind = NATIVE[str(fmt.attributes["element_dtype"])]
    return elements.view(kind).reshape(values.shape), scales.astype(np.uint8).view(SCALE).reshape(of_blocks)


def _elements(
    values: NDArray[np.float32],
    codes: NDArray[np.uint8],
    places: NDArray[np.int64],
    scales: NDArray[np.int16],
    kind: Codes,
    layout: BlockLayout,
) -> NDArray[np.uint8] | None:
    """Return the bits of elements: the codes, but in two's complement, where 0 has one sign."""
    if not kind.is_complement:
        return None if places.size else codes
    elements = codes.copy()
    elements[elements == 128] = 0
    elements[places] = 128
    units = elements.view(np.int8).astype(np.float64).reshape(layout.cut)
    numbers = np.ldexp(units, layout.spread(scales, layout.block) - 127)
    return elements if np.array_equal(numbers, values.reshape(layout.cut)) else None
