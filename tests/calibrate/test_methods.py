"""Oracles: quantiles of the numbers themselves, and the error of rounding them on every grid tried."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from ops.formats import get_format
from transforms.calibrate import clip_histogram
from transforms.calibrate.clip_histogram import clip_by_entropy, clip_by_error
from transforms.calibrate.histogram import BINS, Histogram, fold
from transforms.calibrate.methods import BEYOND, METHODS, CalibrationOptions, choose_range
from transforms.calibrate.range_statistics import RangeStats, add_to_all

RANDOM = np.random.default_rng(1)
SIZE = 50_000
SHAPES = {
    "normal": RANDOM.standard_normal(SIZE),
    "relu": np.maximum(RANDOM.standard_normal(SIZE), 0),
    "laplace": RANDOM.laplace(size=SIZE),
    "heavy tails": RANDOM.standard_t(3, SIZE),
    "all positive": RANDOM.exponential(size=SIZE) + 1,
    "all negative": -RANDOM.exponential(size=SIZE) - 1,
    "lopsided": RANDOM.uniform(-1, 3, SIZE),
}
SAMPLES = {name: x.astype(np.float32) for name, x in SHAPES.items()}


def observe(*arrays: NDArray[np.float32]) -> RangeStats:
    observed = RangeStats(histogram=Histogram())
    for array in arrays:
        add_to_all([observed], array, averaging_constant=0.01)
    return observed


def find(
    observed: RangeStats, method: str, format: str = "int8", *, symmetric: bool = True, **more: float
) -> tuple[float, float]:
    options = CalibrationOptions(method, **more)  # type: ignore[arg-type]
    return choose_range(observed, get_format(format), symmetric=symmetric, options=options)


def rounding_error(x: NDArray[np.float32], low: float, high: float, levels: int, *, symmetric: bool) -> float:
    """The mean squared error of rounding to the grid that covers a range, in float64."""
    if symmetric:
        scale, lowest = max(-low, high) / (levels // 2 - 1), -(levels // 2)
    else:
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / (levels - 1)
        lowest = int(np.rint(low / scale))
    integers = np.clip(np.rint(x / scale), lowest, lowest + levels - 1)
    return float(np.mean((x.astype(np.float64) - integers * scale) ** 2))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("format", ["int8", "uint16"])
def test_min_max_is_exact(format: str, symmetric: bool) -> None:
    x = SAMPLES["lopsided"]
    found = find(observe(x[:100], x[100:]), "MinMax", format, symmetric=symmetric)
    assert found == (x.min(), x.max())


def test_wide_leaves_headroom_on_both_sides_of_zero() -> None:
    """By hand; the headroom of the largest number ends where float32 does."""
    assert find(observe(np.float32([-2, 4])), "Wide") == (-2.5, 5)
    assert find(observe(np.float32([0, 4])), "Wide", symmetric=False) == (0, 5)
    assert find(observe(np.float32([3e38])), "Wide")[1] == np.finfo(np.float32).max
    assert find(observe(np.float32([-2, 4])), "Wide", "uint16") == (-3, 6)
    assert find(observe(np.float32([-2, 4])), "Wide", "int32") == (-32, 64)


def test_moving_average_as_onnxruntime_does() -> None:
    """The first sample counts in full; then old + constant (new - old)."""
    samples = [np.float32([-1, 2]), np.float32([-3, 1]), np.float32([0, 10])]
    low, high = -1 + 0.25 * (-3 + 1), 2 + 0.25 * (1 - 2)
    low, high = low + 0.25 * (0 - low), high + 0.25 * (10 - high)
    observed = RangeStats()
    for x in samples:
        add_to_all([observed], x, averaging_constant=0.25)
    found = find(observed, "MinMax", moving_average=True, averaging_constant=0.25)
    assert found == pytest.approx((low, high), rel=1e-15) and (observed.low, observed.high) == (-3, 10)
    assert find(observed, "MinMax") == (-3, 10)


def around(x: NDArray[np.float32], percentile: float) -> tuple[float, float]:
    """The numbers between which a percentile lies, one rank more to either side."""
    rank = percentile / 100 * x.size
    ordered = np.sort(x)
    return float(ordered[max(int(rank) - 2, 0)]), float(ordered[min(int(rank) + 1, x.size - 1)])


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
@pytest.mark.parametrize("shape", sorted(SAMPLES))
def test_percentile_of_magnitudes(shape: str, percentile: float) -> None:
    observed = observe(SAMPLES[shape])
    assert observed.histogram is not None
    low, high = find(observed, "Percentile", percentile=percentile)
    least, most = around(np.abs(SAMPLES[shape]), percentile)
    width = observed.histogram.bin_width
    assert least - width <= max(-low, high) <= most + width


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
@pytest.mark.parametrize("shape", sorted(SAMPLES))
def test_percentile_at_both_ends(shape: str, percentile: float) -> None:
    observed = observe(SAMPLES[shape])
    assert observed.histogram is not None
    tail = (100 - percentile) / 2
    found = find(observed, "Percentile", symmetric=False, percentile=percentile)
    width = observed.histogram.bin_width
    for end, share in zip(found, (tail, 100 - tail), strict=True):
        least, most = around(SAMPLES[shape], share)
        assert least - width <= end <= most + width


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", sorted(SAMPLES))
def test_all_percent_are_min_and_max(shape: str, symmetric: bool) -> None:
    x = SAMPLES[shape]
    low, high = find(observe(x), "Percentile", symmetric=symmetric, percentile=100)
    assert (low, high) == pytest.approx((x.min(), x.max()), rel=1e-12)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("format", ["int8", "uint8"])
@pytest.mark.parametrize("shape", sorted(SAMPLES))
def test_least_error_is_near_that_of_the_best_of_all_grids(shape: str, format: str, symmetric: bool) -> None:
    """What is found may be 3 % worse than the best of a dense net of ranges, for the net's ends move the zero
    point as well; MinMax is up to 40 % worse."""
    x = SAMPLES[shape]
    found = find(observe(x), "MSE", format, symmetric=symmetric)
    net = np.linspace(0.05, 1, 25)
    pairs = zip(net, net, strict=True) if symmetric else itertools.product(net, net)
    part = x[::10]
    best = min(
        (rounding_error(part, x.min() * a, x.max() * b, 256, symmetric=symmetric), a, b) for a, b in pairs
    )
    wanted = rounding_error(x, x.min() * best[1], x.max() * best[2], 256, symmetric=symmetric)
    assert rounding_error(x, *found, 256, symmetric=symmetric) <= 1.03 * wanted


@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("levels", [16, 256])
@pytest.mark.parametrize("shape", ["normal", "relu", "lopsided"])
def test_expected_error_is_that_of_the_numbers(shape: str, levels: int, share: float) -> None:
    """Up to 2 %, for numbers are not spread evenly within the bins."""
    observed, x = observe(SAMPLES[shape]), SAMPLES[shape]
    assert observed.histogram is not None
    error = clip_histogram._error_function(observed.histogram, (observed.low, observed.high))
    low, high = (np.array([share * end]) for end in (observed.low, observed.high))
    for make, symmetric in ((clip_histogram._grids, False), (clip_histogram._symmetric_grids, True)):
        wanted = rounding_error(x, float(low[0]), float(high[0]), levels, symmetric=symmetric)
        assert error(make(low, high, levels))[0] / x.size == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("highest", [1.0, 0.99, 6.0, 255.0])
def test_numbers_that_equal_the_highest_count_wherever_bins_begin(highest: float) -> None:
    """A bin begins at 1, 6 and 255: all of its numbers are the edge, and it has no width within the range."""
    rng = np.random.default_rng(5)
    x = np.concatenate([np.full(3000, highest), rng.uniform(0, 0.3, 6000) * highest]).astype(np.float32)
    observed = observe(x)
    assert observed.histogram is not None
    error = clip_histogram._error_function(observed.histogram, (observed.low, observed.high))
    low, high = np.array([0.0]), np.array([0.6 * highest])
    wanted = rounding_error(x, 0.0, float(high[0]), 256, symmetric=False)
    # clipping a third of the numbers is all but the whole error; 0.99 lies within a bin of 0.002
    assert error(clip_histogram._grids(low, high, 256))[0] / x.size == pytest.approx(wanted, rel=0.02)
    for symmetric in (True, False):
        assert find(observed, "MSE", "int8", symmetric=symmetric)[1] == pytest.approx(highest, rel=0.01)


@pytest.mark.parametrize("shape", ["normal", "laplace", "heavy tails"])
def test_least_error_clips_more_with_fewer_levels(shape: str) -> None:
    observed = observe(SAMPLES[shape])
    assert observed.histogram is not None
    ends = [
        clip_by_error(observed.histogram, (observed.low, observed.high), 2**bits, symmetric=True)[1]
        for bits in (4, 6, 8, 16)
    ]
    assert ends == sorted(ends) and ends[0] < 0.9 * ends[-1]


@pytest.mark.parametrize("symmetric", [True, False])
def test_sixteen_bits_are_not_clipped(symmetric: bool) -> None:
    x = SAMPLES["normal"]
    low, high = find(observe(x), "MSE", "int16", symmetric=symmetric)
    assert (low, high) == pytest.approx((x.min(), x.max()), rel=0.02)
    assert find(observe(x), "Entropy", "int16", symmetric=symmetric) == (x.min(), x.max())


def plain_divergence(counts: NDArray[np.int64], stop: int, levels: int) -> float:
    """The divergence of counts clipped to the bins below ``stop``, number by number as it is defined."""
    p = counts[:stop].astype(float)
    p[-1] += counts[stop:].sum()
    q = np.zeros(stop)
    for level in range(levels):
        bins = [i for i in range(stop) if i * levels // stop == level and counts[i] > 0]
        for i in bins:
            q[i] = counts[bins].sum() / len(bins)
    p, q = p / p.sum(), q / q.sum()
    return sum(a * np.log(a / max(b, 1e-4 / counts.sum())) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize("shape", ["laplace", "heavy tails"])
def test_entropy_is_the_least_divergence(shape: str) -> None:
    """The limit chosen diverges less than others next to it and far from it, by the definition."""
    histogram = observe(SAMPLES[shape]).histogram
    assert histogram is not None
    low, high = clip_by_entropy(histogram, 256, symmetric=True)
    stop = round(high / histogram.bin_width)
    counts = fold(histogram.counts)
    counts[0] = min(counts[0], counts[1])
    end = int(np.flatnonzero(counts)[-1]) + 1
    others = [128, 200, stop * 3 // 4, stop * 5 // 4, end]
    chosen = plain_divergence(counts, stop, 128)
    assert low == -high and chosen <= min(plain_divergence(counts, i, 128) for i in others if 128 <= i <= end)


def test_entropy_clips_a_lone_outlier() -> None:
    x = np.append(SAMPLES["laplace"], np.float32(60))
    high = find(observe(x), "Entropy")[1]
    assert 3 < high < 30


@pytest.mark.parametrize("symmetric", [True, False])
def test_entropy_is_not_misled_by_zeros(symmetric: bool) -> None:
    """Half of the numbers behind a Relu are zero, which every grid has."""
    x = SAMPLES["relu"]
    with_zeros, without = (find(observe(y), "Entropy", symmetric=symmetric) for y in (x, x[x > 0]))
    assert with_zeros[1] == pytest.approx(without[1], rel=0.1) and with_zeros[1] > 2


@pytest.mark.parametrize("method", sorted({*METHODS} - BEYOND))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", sorted(SAMPLES))
def test_ranges_never_exceed_what_was_seen(shape: str, symmetric: bool, method: str) -> None:
    x = SAMPLES[shape]
    for format in ("int8", "uint8", "int16", "int32"):
        low, high = find(observe(x), method, format, symmetric=symmetric)
        assert x.min() <= low <= high <= x.max()


@pytest.mark.parametrize("method", sorted({*METHODS} - BEYOND))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [2.5], [-2.5, -2.5], [1e-42], [3e38, -3e38], [-1, 0]])
def test_few_numbers(values: list[float], symmetric: bool, method: str) -> None:
    low, high = find(observe(np.float32(values)), method, symmetric=symmetric)
    assert np.float32(min(values)) <= low <= high <= np.float32(max(values))


@pytest.mark.parametrize("method", sorted({*METHODS} - BEYOND))
def test_one_observation_serves_every_format(method: str) -> None:
    observed = observe(SAMPLES["heavy tails"])
    eight, sixteen = (find(observed, method, format) for format in ("int8", "int16"))
    assert find(observed, method, "int8") == eight
    assert sixteen[1] >= eight[1]


@pytest.mark.parametrize("method", sorted({*METHODS} - BEYOND))
def test_nothing_was_seen(method: str) -> None:
    with pytest.raises(ValueError, match="it had no elements in any sample"):
        find(observe(np.zeros((0, 3), np.float32)), method)


def test_formats_without_a_scale() -> None:
    with pytest.raises(ValueError, match="format 'mx9' has no scale and needs no range"):
        find(observe(SAMPLES["normal"]), "MinMax", "mx9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "minmax"},
            r"calibration method 'minmax' is unknown, did you mean 'MinMax'\? legal are MinMax, Entropy",
        ),
        ({"percentile": 0.0}, r"percentile 0\.0 is not above 0 and at most 100"),
        ({"percentile": 100.1}, r"percentile 100\.1 is not above 0 and at most 100"),
        ({"averaging_constant": 0.0}, r"averaging constant 0\.0 is not above 0 and at most 1"),
        ({"averaging_constant": 1.5}, r"averaging constant 1\.5 is not above 0 and at most 1"),
        ({"method": "MSE", "moving_average": True}, "a moving average is part of method MinMax, not of MSE"),
    ],
)
def test_options_out_of_range(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CalibrationOptions(**options)


@pytest.mark.parametrize("method", sorted({*METHODS} - BEYOND))
def test_ranges_are_quick(method: str) -> None:
    """Hundreds of tensors in seconds, also where others keep the processor busy. Measured: 0.03 s at most."""
    observed = observe(SAMPLES["heavy tails"])
    start = time.thread_time()
    for _ in range(10):
        find(observed, method, symmetric=False)
    assert time.thread_time() - start < 0.5 and len(observed.histogram.counts) == BINS  # type: ignore[union-attr]
