"""Counts of numbers in bins. Oracle: the same in float64, in which no product underflows."""

from __future__ import annotations

import numpy as np
import pytest

from ops.array_types import Float32Array
from ops.histograms import count_in_bins

RNG = np.random.default_rng(5)
SIZES = [*range(10), 1023, 1024, 1025, 1027, 4096, 50_000]
EXPONENTS = [-100, -20, 0, 3, 60, 128]


def twin(x: Float32Array, exponent: int, bins: int) -> np.ndarray:
    places = np.floor(x.astype(np.float64).reshape(-1) * (bins / 2) * 2.0**-exponent) + bins / 2
    return np.bincount(np.clip(places, 0, bins - 1).astype(int), minlength=bins)


def numbers(size: int, exponent: int) -> Float32Array:
    """Return numbers on and beside edges of bins, and of all sizes, most of them within the bins."""
    steps = np.ldexp(RNG.integers(-2048, 2048, size).astype(np.float64), exponent - 11)
    x = steps.clip(-3.4e38, 3.4e38).astype(np.float32)
    x[::3] = np.nextafter(x[::3], RNG.choice([-np.inf, np.inf], x[::3].shape).astype(np.float32))
    x[1::4] *= np.exp2(-RNG.uniform(0, 60, x[1::4].shape)).astype(np.float32)
    x[5::11] = RNG.choice([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e30, -1e30], x[5::11].shape)
    return np.nan_to_num(x, posinf=3.4e38, neginf=-3.4e38)


@pytest.mark.parametrize("bins", [2, 4096])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_kernel_equals_its_twin(exponent: int, bins: int) -> None:
    for size in SIZES:
        x, counts = numbers(size, exponent), np.zeros(bins, np.int64)
        count_in_bins(x, exponent, counts)
        assert np.array_equal(counts, twin(x, exponent, bins)), size


@pytest.mark.parametrize("number", [0.0, -0.0, -0.3, 1e-45, -1e-45, np.inf, -np.inf])
def test_equal_numbers(number: float) -> None:
    """All tables count the same bin; infinite numbers lie beyond all bins."""
    x, counts = np.full(12_345, number, np.float32), np.zeros(4096, np.int64)
    count_in_bins(x, 128, counts)
    assert np.array_equal(counts, twin(x, 128, 4096)) and counts.max() == x.size


def test_counts_are_added_to_those_that_are_there() -> None:
    x, counts = RNG.standard_normal((70, 30)).astype(np.float32), np.zeros(64, np.int64)
    for part in (x[:20], x[20:, ::-1].T):
        count_in_bins(part, 3, counts)
    assert np.array_equal(counts, twin(x, 3, 64))


def test_counts_may_have_more_than_32_bits() -> None:
    counts = np.full(4096, 1 << 40, np.int64)
    count_in_bins(np.float32([0.5]), 0, counts)
    assert counts.sum() == 4096 * (1 << 40) + 1 and counts[3072] == (1 << 40) + 1
