"""What a search of scales compares. Oracle: the same sums in NumPy, in the order that the kernel promises."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ops import _library
from ops.array_types import Float32Array
from ops.formats import get_format
from ops.integers import dequantize, quantize
from ops.squared_errors import squared_errors

RNG = np.random.default_rng(11)
LANES = 16
NO_COUNTS = np.zeros((0, 0, 0), np.float32)


def twin(
    w: Float32Array,
    counts: Float32Array | None,
    scale: Float32Array,
    lowest: Float32Array,
    highest: Float32Array,
) -> np.ndarray:
    """Return the errors [S, channels]; cumsum adds one number after the other."""
    values = np.where(np.isfinite(w), w, np.float32(0))
    errors = []
    for one, low, high in zip(scale, lowest, highest, strict=True):
        with np.errstate(all="ignore"):
            ratio = values / one[:, None]
            miss = np.square(ratio - np.clip(np.rint(ratio), low[:, None], high[:, None]))
            miss = miss if counts is None else miss * counts
        errors.append(_sum_of_rows(miss.astype(np.float64)))
    return np.array(errors)


def _sum_of_rows(miss: NDArray[np.float64]) -> NDArray[np.float64]:
    outer, channels, inner = miss.shape
    if inner > 1:
        lanes = np.pad(miss, ((0, 0), (0, 0), (0, -inner % LANES))).reshape(outer, channels, -1, LANES)
        miss = np.cumsum(np.cumsum(lanes, axis=2)[:, :, -1], axis=2)[:, :, -1:]
    return np.cumsum(miss[..., 0], axis=0)[-1]


SHAPES = [
    *((1, 1, n) for n in (1, 2, 15, 16, 17, 31, 33, 1000)),
    *((n, 1, 1) for n in (2, 40)),
    *((3, n, 1) for n in (2, 63, 64, 65, 128, 200)),
    *((3, n, 9) for n in (1, 2, 70)),
    (2, 5, 64),
]


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_equals_its_twin(shape: tuple[int, int, int], weighed: bool) -> None:
    w = (RNG.standard_normal(shape) * 2 ** RNG.uniform(-20, 20, shape)).astype(np.float32)  # order matters
    w.reshape(-1)[:: max(5, w.size // 7)] = RNG.choice([np.nan, np.inf, -np.inf, 0, -0.0, 3e38, 1e-40])
    scale = RNG.uniform(1e-3, 2, (4, shape[1])).astype(np.float32)
    scale[0, 0] = np.finfo(np.float32).tiny
    lowest = -RNG.integers(0, 200, scale.shape).astype(np.float32)
    highest = (lowest + RNG.choice([15, 255, 65535, 2.0**32 - 1])).astype(np.float32)
    counts = RNG.random(shape).astype(np.float32) if weighed else None
    errors = np.zeros(scale.shape)
    _library.scale_errors(w, NO_COUNTS if counts is None else counts, scale, lowest, highest, errors)
    assert np.array_equal(errors, twin(w, counts, scale, lowest, highest))


@pytest.mark.parametrize("shape", [(6, 70, 1), (4, 3, 20)])
def test_errors_are_added_to_those_that_are_there(shape: tuple[int, int, int]) -> None:
    """Rows one after the other, so that a tensor in two pieces is summed as it is in one."""
    w = RNG.standard_normal(shape).astype(np.float32)
    scale = np.full((1, shape[1]), 0.1, np.float32)
    limits = (np.full_like(scale, -8), np.full_like(scale, 7))
    whole, parts = np.zeros(scale.shape), np.zeros(scale.shape)
    _library.scale_errors(w, NO_COUNTS, scale, *limits, whole)
    for part in (w[:2], w[2:]):
        _library.scale_errors(part, NO_COUNTS, scale, *limits, parts)
    assert np.array_equal(whole, parts) and whole.all()


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_without_numbers_there_is_nothing_to_add(shape: tuple[int, int, int]) -> None:
    scale, errors = np.ones((2, shape[1]), np.float32), np.full((2, shape[1]), 5.0)
    _library.scale_errors(np.zeros(shape, np.float32), NO_COUNTS, scale, -scale, scale, errors)
    assert (errors == 5).all()


@pytest.mark.parametrize("name", ["int4", "uint8", "int16"])
def test_errors_are_those_of_rounded_numbers(name: str) -> None:
    """Oracle: quantized and dequantized. The kernel rounds ratios of less than 2^11 steps to float32: each is
    off by 2^-13 of a step at most, and so is the square of half a step.
    """
    fmt = get_format(name)
    x = (RNG.standard_normal((5, 3, 7)) * 40).astype(np.float32)
    scales = RNG.uniform(0.1, 4, (2, 3)).astype(np.float32)
    zeros = RNG.integers(int(fmt.lowest), int(fmt.highest), scales.shape).astype(fmt.dtype)
    importance = RNG.random(x.shape).astype(np.float32)
    errors = squared_errors(x, scales, zeros, fmt, importance)
    for scale, zero, found in zip(scales, zeros, errors, strict=True):
        read = dequantize(quantize(x, scale, zero, fmt, axis=1), scale, zero, axis=1)
        misses = importance * np.square(x.astype(np.float64) - read)
        off = np.abs(found - misses.sum((0, 2)))
        assert (off <= x[:, 0].size * 2.0**-13 * np.square(scale) + 1e-6 * found).all()
