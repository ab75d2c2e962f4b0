"""Types of a final rounding, and the intervals of numbers that round to the same value."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array

ROUNDINGS = {"float32": 24, "float16": 11, "bfloat16": 8}
"""Types to which products may have been rounded, and bits of their significands."""

_TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

SHORT = (11, 17, 20, 24)
"""Bits of a step or minimum, fewest first: float16, float16 times a 6-bit integer, float32."""


def rounded(values: Float32Array, rounding: str) -> Float32Array:
    """Return float32 numbers rounded to a type."""
    if rounding not in _TYPES:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(_TYPES[rounding]).astype(np.float32)


def half_units(rows: Float32Array, rounding: str) -> tuple[Float64Array, Float64Array]:
    """Return how far below and above the magnitude of each number the numbers lie that round to it."""
    fraction, exponent = np.frexp(np.abs(rows.astype(np.float64)))
    least = {"float32": -149, "float16": -24, "bfloat16": -133}[rounding]
    above = np.ldexp(0.5, np.maximum(exponent - ROUNDINGS[rounding], least))
    return np.where(fraction == 0.5, above / 2, above), above


def short(values: NDArray[np.floating], bits: int) -> Float32Array:
    """Return numbers rounded to a number of bits; 11 bits mean float16, including its subnormal numbers."""
    if bits == ROUNDINGS["float16"]:
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    fraction, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits).astype(np.float32)
