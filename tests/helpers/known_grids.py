"""Weights as checkpoints in few bits have them, computed in float32 as their readers compute them.

Each is [N, K] with blocks along K. GGUF: ``gguf/quants.py`` of llama.cpp; GPTQ and AWQ: (q - z) * s in the
type of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet
from numpy.typing import NDArray

Array = NDArray[np.float32]
_OUTPUTS, _INPUTS = 24, 512


def half(values: object) -> Array:
    """Return numbers rounded to float16."""
    return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def brain(values: object) -> Array:
    """Return numbers rounded to bfloat16."""
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def plain(values: object) -> Array:
    """Return numbers as float32."""
    return np.asarray(values, np.float32)


def _blocks(seed: int, size: int) -> Array:
    random = np.random.default_rng(seed)
    return plain(random.standard_normal((_OUTPUTS, _INPUTS // size, size)) * 0.05)


def _joined(rows: Array) -> Array:
    return plain(rows).reshape(_OUTPUTS, _INPUTS)


def largest_at_end(seed: int) -> Array:
    """Q4_0: the number of largest magnitude is -8 steps, a step may be negative."""
    rows = _blocks(seed, 32)
    at = np.abs(rows).argmax(2)[..., None]
    step = np.take_along_axis(rows, at, 2) / -8
    return _joined(plain(np.clip(np.rint(rows / step), -8, 7)) * half(step))


def with_minimum(bits: int, size: int = 32) -> Callable[[int], Array]:
    """Q4_1 and Q5_1: q * d + m with d and m in float16."""

    def _make(seed: int) -> Array:
        rows = _blocks(seed, size)
        low, high = rows.min(2, keepdims=True), rows.max(2, keepdims=True)
        step = (high - low) / (2**bits - 1)
        return _joined(plain(np.rint((rows - low) / step)) * half(step) + half(low))

    return _make


def symmetric(
    bits: int, size: int, kind: Callable[[object], Array] = half, end: int = 1
) -> Callable[[int], Array]:
    """Q5_0, Q8_0, ternary, int8: q * d."""

    def _make(seed: int) -> Array:
        rows = _blocks(seed, size)
        step = kind(np.abs(rows).max(2, keepdims=True) / (2 ** (bits - 1) - end))
        q = np.clip(np.rint(rows / step), -(2 ** (bits - 1)) + end, 2 ** (bits - 1) - 1)
        return _joined(plain(q) * step)

    return _make


def k_quant(bits: int, size: int, *, minimum: bool) -> Callable[[int], Array]:
    """K-quants: steps and minima are float16 times an integer of 6 bits, of a block of 256."""

    def _make(seed: int) -> Array:
        rows = _blocks(seed, size).reshape(_OUTPUTS, -1, 256 // size, size)
        low = np.minimum(rows.min(3, keepdims=True), 0)
        step = (rows.max(3, keepdims=True) - low) / (2**bits - 1)
        unit, least = half(step.max(2, keepdims=True) / 63), half(-low.min(2, keepdims=True) / 63)
        step, low = plain(unit * np.clip(np.rint(step / unit), 1, 63)), plain(least * np.rint(-low / least))
        if minimum:
            return _joined(step * plain(np.clip(np.rint((rows + low) / step), 0, 2**bits - 1)) - low)
        return _joined(step * plain(np.clip(np.rint(rows / step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)))

    return _make


def zero_points(
    bits: int, size: int, kind: Callable[[object], Array] = half, last: Callable[[object], Array] = plain
) -> Callable[[int], Array]:
    """GPTQ and AWQ: (q - z) * s, which ``last`` rounds."""

    def _make(seed: int) -> Array:
        rows = _blocks(seed, size)
        low, high = np.minimum(rows.min(2, keepdims=True), 0), np.maximum(rows.max(2, keepdims=True), 0)
        step = kind((high - low) / (2**bits - 1))
        zero = np.rint(-low / step)
        return _joined(last(plain(np.clip(np.rint(rows / step) + zero, 0, 2**bits - 1) - zero) * step))

    return _make


def act_order(make: Callable[[int], Array]) -> Callable[[int], Array]:
    """GPTQ with act-order: which inputs share a block is a table of its own."""

    def _make(seed: int) -> Array:
        return np.ascontiguousarray(make(seed)[:, np.random.default_rng(seed).permutation(_INPUTS)])

    return _make


def small_floats(name: str, size: int, kind: Callable[[object], Array] = plain) -> Callable[[int], Array]:
    """FP8 checkpoints: an 8-bit float times a scale."""

    def _make(seed: int) -> Array:
        rows, element = _blocks(seed, size), np.dtype(getattr(ml_dtypes, name))
        scale = kind(np.abs(rows).max(2, keepdims=True) / float(ml_dtypes.finfo(element).max))
        return _joined(plain((rows / scale).astype(element)) * scale)

    return _make


def in_type(make: Callable[[int], Array], last: Callable[[object], Array]) -> Callable[[int], Array]:
    """A checkpoint that was decoded in a type of 16 bits."""
    return lambda seed: last(make(seed))


def powers_of_two(values: object) -> Array:
    """MXFP4: scales are powers of two."""
    return np.exp2(np.floor(np.log2(plain(values))))


def far_apart(make: Callable[[int], Array], size: int) -> Callable[[int], Array]:
    """Every other block has much larger numbers, so that no scale serves for two."""

    def _make(seed: int) -> Array:
        rows = make(seed).reshape(_OUTPUTS, -1, 2, size)
        rows[:, :, 0] *= 64
        return _joined(rows)

    return _make


def products(values: object) -> Array:
    """NVFP4: scales are 8-bit floats times one number for all."""
    return plain((plain(values) / 1e-4).astype(ml_dtypes.float8_e4m3fn)) * np.float32(1e-4)


def of_tensor(make: Callable[[Array], Array]) -> Callable[[int], Array]:
    """One scale for all numbers."""

    def _make(seed: int) -> Array:
        numbers = _joined(_blocks(seed, _INPUTS))
        return make(numbers)

    return _make


def _ternary(numbers: Array) -> Array:
    scale = np.abs(numbers).mean()
    return np.clip(np.rint(numbers / scale), -1, 1) * scale


def _int8(numbers: Array) -> Array:
    scale = np.abs(numbers).max() / np.float32(127)
    return np.rint(numbers / scale) * scale


def tiles(last: Callable[[object], Array] = plain) -> Callable[[int], Array]:
    """FP8 checkpoints with a scale for each square, of 128 rows, which are all here, and 128 columns."""

    def _make(seed: int) -> Array:
        rows = _blocks(seed, 128)
        scale = np.abs(rows).max((0, 2), keepdims=True) / np.float32(448)
        return _joined(last(plain((rows / scale).astype(ml_dtypes.float8_e4m3fn)) * scale))

    return _make


GRIDS: Mapping[str, tuple[Callable[[int], Array], int]] = {
    "Q4_0": (largest_at_end, 32),
    "Q4_1": (with_minimum(4), 32),
    "Q5_0": (symmetric(5, 32), 32),
    "Q5_1": (with_minimum(5), 32),
    "Q8_0": (symmetric(8, 32), 32),
    "Q2_K": (k_quant(2, 16, minimum=True), 16),
    "Q3_K": (k_quant(3, 16, minimum=False), 16),
    "Q4_K": (k_quant(4, 32, minimum=True), 32),
    "Q5_K": (k_quant(5, 32, minimum=True), 32),
    "Q6_K": (k_quant(6, 16, minimum=False), 16),
    **{f"GPTQ {size}": (zero_points(4, size), size) for size in (32, 64, 128)},
    "GPTQ 8 bits": (zero_points(8, 128), 128),
    "GPTQ 3 bits": (zero_points(3, 64), 64),
    "GPTQ float32": (zero_points(4, 128, plain), 128),
    "GPTQ in float16": (zero_points(4, 128, half, half), 128),
    "GPTQ 8 bits in float16": (zero_points(8, 128, half, half), 128),
    "AWQ in bfloat16": (zero_points(4, 128, brain, brain), 128),
    **{f"GPTQ {size}, act-order": (act_order(zero_points(4, size)), size) for size in (32, 128)},
    "GPTQ 8 bits, act-order": (act_order(zero_points(8, 128)), 128),
    "GPTQ in float16, act-order": (act_order(zero_points(4, 128, half, half)), 128),
    "2 bits": (zero_points(2, 64), 64),
    "2 bits with a minimum": (with_minimum(2), 32),
    "ternary": (symmetric(2, _INPUTS, plain), 0),
    "ternary in blocks": (symmetric(2, 256), 256),
    "ternary per tensor": (of_tensor(_ternary), 0),
    "int8 per channel": (symmetric(8, _INPUTS, plain), 0),
    "int8 per tensor": (of_tensor(_int8), 0),
    "int8 in float16": (lambda seed: half(symmetric(8, _INPUTS)(seed)), 0),
    **{
        f"{name} in {kind}": (in_type(make, last), size)
        for name, make, size in (
            ("Q4_0", largest_at_end, 32),
            ("Q4_1", with_minimum(4), 32),
            ("Q8_0", symmetric(8, 32), 32),
            ("Q4_K", k_quant(4, 32, minimum=True), 32),
            ("Q5_K", k_quant(5, 32, minimum=True), 32),
            ("Q6_K", k_quant(6, 16, minimum=False), 16),
        )
        for kind, last in (("float16", half), ("bfloat16", brain))
    },
    **{f"4 bits, {size}": (symmetric(4, size, plain), size) for size in (16, 32, 64, 128, 256)},
    "E4M3": (small_floats("float8_e4m3fn", _INPUTS), 0),
    "E4M3 in blocks": (small_floats("float8_e4m3fn", 128), 128),
    "E4M3 in tiles": (tiles(), 128),
    "E4M3 in tiles in bfloat16": (tiles(brain), 128),
    "E4M3 in float16": (in_type(small_floats("float8_e4m3fn", _INPUTS), half), 0),
    "E5M2 in bfloat16": (in_type(small_floats("float8_e5m2", _INPUTS), brain), 0),
    "E2M1, as MXFP4": (far_apart(small_floats("float4_e2m1fn", 32, powers_of_two), 32), 32),
    "E2M1, as NVFP4": (small_floats("float4_e2m1fn", 16, products), 16),
    "E5M2": (small_floats("float8_e5m2", _INPUTS), 0),
}
"""Functions of a seed that make a weight, and its blocks: 0 for a scale per channel."""

_QUICK = "GPTQ in float16", "AWQ in bfloat16", "Q4_K in bfloat16", "E4M3 in tiles in bfloat16"


def names(*without: str) -> list[ParameterSet]:
    """Return names of grids without those that contain a word.

    Those of numbers in 16 bits, which take a second, are for the heavy tests but for some.
    """
    chosen = [name for name in GRIDS if not any(word in name for word in without)]
    heavy = [name for name in chosen if "float16" in name and name not in _QUICK]
    return [pytest.param(name, marks=[pytest.mark.heavy] if name in heavy else []) for name in chosen]
