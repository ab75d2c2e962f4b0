"""Find a scale by which all numbers of a block are exact multiples of 8-bit floats."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ops.array_types import Float32Array, Float64Array
from ops.grids.lattice import BlockGrids, scales_of

SMALL_FLOATS = {"float8_e4m3fn": (4, 448.0, 2.0**-9), "float8_e5m2": (3, 57344.0, 2.0**-16)}
"""Bits of a significand, the largest number, and the least, of which all numbers are multiples."""

ELEMENTS = {name: np.dtype(getattr(ml_dtypes, name)) for name in SMALL_FLOATS}
"""The NumPy dtypes."""

_NEAR = {"float32": 2.0**-20, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Relative error of the ratio of two numbers of a type."""


def fit_floats(rows: Float32Array, element: str, rounding: str = "float32") -> BlockGrids:
    """Search the scale of each block [B, n] of 8-bit floats with a final rounding; the scale of zeros is 1.

    The largest number of a block has one of 8 or 4 significands, which leaves as many scales, and a power of
    two: the one that makes it the largest number of the type with that significand.
    """
    bits, largest, least = SMALL_FLOATS[element]
    top = np.abs(rows).max(1).astype(np.float64)
    scales, is_found = np.ones(len(rows), np.float32), top == 0
    for significand in range(1 << (bits - 1), 1 << bits):
        left = np.flatnonzero(~is_found)
        if not len(left):
            break
        reach = significand * 2.0 ** np.floor(np.log2(largest / significand))
        part = rows[left].astype(np.float64) * (reach / top[left, None])
        numbers = _nearest(part, bits, least)
        near = (np.abs(numbers - part) <= np.abs(part) * _NEAR[rounding] + least * 2).all(1)
        step, fits = scales_of(rows[left[near]], numbers[near], rounding)
        hit = left[near][fits]
        scales[hit], is_found[hit] = step[fits], True
    return BlockGrids.of(rows, scales, np.zeros_like(scales), is_found)


def _nearest(values: Float64Array, bits: int, least: float) -> Float64Array:
    _, exponent = np.frexp(values)
    unit = np.maximum(np.ldexp(1.0, exponent - bits), least)
    return np.asarray(np.rint(values / unit) * unit)
