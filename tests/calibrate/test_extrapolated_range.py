"""Oracles: numbers that nobody has seen, from the same distribution; parameters that were drawn with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ops.formats import get_format
from ops.integers import dequantize, quantize, range_scale
from transforms.calibrate.cache import decode, encode
from transforms.calibrate.methods import CalibrationOptions, choose_range
from transforms.calibrate.range_statistics import HIGH, LOW, MAGNITUDE, RangeStats, SampleEnds, add_to_all

GAMMA = 0.5772156649


def observe(*samples: NDArray[np.floating]) -> RangeStats:
    observed = RangeStats()
    for sample in samples:
        add_to_all([observed], sample.astype(np.float32), averaging_constant=0.01)
    return observed


def found(observed: RangeStats, format: str = "uint8", method: str = "Extrapolated") -> tuple[float, float]:
    fmt = get_format(format)
    return choose_range(observed, fmt, symmetric=fmt.is_signed, options=CalibrationOptions(method))


def error(x: NDArray[np.floating], limits: tuple[float, float], format: str) -> float:
    """Return the mean squared error of rounding numbers to the grid of a range."""
    fmt = get_format(format)
    scale, zero = range_scale(*limits, fmt, symmetric=fmt.is_signed)
    read = dequantize(quantize(x.astype(np.float32), scale, zero, fmt), scale, zero)
    return float(np.square(read - x).mean())


@pytest.mark.parametrize("format", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("shape", ["normal", "laplace", "gumbel", "logistic"])
def test_few_numbers_are_worth_a_wider_range(shape: str, format: str) -> None:
    """In the mean over 60 tensors of 16 numbers in each of 8 samples, on 2000 other samples."""
    random, gains = np.random.default_rng(3), []
    for _ in range(60):
        observed = observe(*getattr(random, shape)(size=(8, 16)))
        unseen = getattr(random, shape)(size=(2000, 16))
        narrow, wide = (error(unseen, found(observed, format, m), format) for m in ("MinMax", "Extrapolated"))
        gains.append(10 * math.log10(narrow / wide))
    assert np.mean(gains) > (6 if get_format(format).bits == 16 else 2)


@pytest.mark.parametrize("format", ["uint8", "int8"])
def test_many_numbers_keep_the_range_that_was_seen(format: str) -> None:
    samples = np.random.default_rng(4).normal(size=(8, 100_000)).astype(np.float32)
    assert found(observe(*samples), format) == (samples.min(), samples.max())


def test_ends_that_all_samples_have_stay() -> None:
    """Pixels from 0 to 1: neither end is expected elsewhere, and zero is no end that moves."""
    samples = np.random.default_rng(5).uniform(size=(8, 12))
    samples[:, 0], samples[:, 1] = 0, 1
    assert found(observe(*samples)) == (0, 1)
    positive = np.abs(np.random.default_rng(5).normal(size=(8, 12)))
    low, high = found(observe(*positive))
    assert low == positive.astype(np.float32).min() and high > positive.max()


def test_a_symmetric_grid_follows_its_far_end() -> None:
    samples = np.random.default_rng(6).normal(size=(8, 12)) - 2
    low, high = found(observe(*samples), "int8")
    assert low < samples.min() and high == samples.astype(np.float32).max()


@pytest.mark.parametrize("limits", [(-1.0, 1.0), (-1.0, math.inf), (-math.inf, 1.0)])
def test_no_range_is_beyond_the_limits_of_a_tensor(limits: tuple[float, float]) -> None:
    observed = observe(*np.random.default_rng(7).uniform(-0.9, 0.9, size=(8, 4)))
    free = found(observed)
    assert free[0] < -1 and free[1] > 1
    observed.limits = limits
    assert found(observed) == (max(free[0], limits[0]), min(free[1], limits[1]))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_get_headroom(count: int) -> None:
    """As by Wide: two or three samples do not tell how their ends scatter."""
    observed = observe(*np.random.default_rng(8).normal(size=(count, 12)))
    for format in ("uint8", "int8", "int16", "int32"):
        assert found(observed, format) == found(observed, format, "Wide")


def test_16_bits_have_headroom_even_if_samples_are_alike() -> None:
    samples = np.tile(np.float32([-1, 0.5, 2]), (8, 1))
    assert found(observe(*samples), "uint8") == (-1, 2)
    assert found(observe(*samples), "uint16") == (-1.5, 3)


def test_the_largest_number_of_float32_ends_a_range() -> None:
    observed = observe(*np.float32([[1e38], [2e38], [3e38], [1e37]]))
    assert found(observed, "uint16")[1] == np.finfo(np.float32).max


def test_gumbel_is_found_by_its_moments() -> None:
    """Location and scale of 100 000 samples whose ends are distributed so; 4 standard errors."""
    random, count = np.random.default_rng(9), 100_000
    ends, drawn = SampleEnds(), random.gumbel((5.0, 3.0), (0.5, 0.2), (count, 2))
    for low, high in zip(-drawn[:, 0], drawn[:, 1], strict=True):
        ends.add(float(low), float(high))
    for end, (location, scale) in ((LOW, (5.0, 0.5)), (HIGH, (3.0, 0.2))):
        assert ends.beyond(end) == pytest.approx((location, scale), abs=4 * scale * 1.3 / math.sqrt(count))
    largest = np.maximum(drawn[:, 0], drawn[:, 1])
    scale = largest.std(ddof=1) * math.sqrt(6) / math.pi
    assert ends.beyond(MAGNITUDE) == pytest.approx((largest.mean() - GAMMA * scale, scale), rel=1e-6)


@pytest.mark.parametrize("ends", [[], [(-1.0, 2.0)], [(-1.0, 2.0)] * 5, [(0.0, 0.0)] * 5])
def test_samples_that_are_alike_tell_nothing(ends: list[tuple[float, float]]) -> None:
    found = SampleEnds()
    for low, high in ends:
        found.add(low, high)
    assert all(found.beyond(end) is None for end in (LOW, HIGH, MAGNITUDE))


def test_ends_are_kept_in_json() -> None:
    observed = observe(*np.random.default_rng(10).normal(size=(5, 12)))
    assert decode(encode(observed)).ends == observed.ends


@pytest.mark.parametrize(
    "stored",
    [[1, [1, 2, 3], [1, 2]], [1, [1, 2, -3], [1, 2, 3]], [1, [1, 2, 3], [1, 2, math.nan]], 7],
)
def test_what_is_no_sum_of_ends_is_refused(stored: object) -> None:
    entry = {"numbers": 1, "range": [0, 1], "average": [0, 1], "ends": stored}
    with pytest.raises((ValueError, TypeError)):
        decode(entry)
