"""Statistics of a tensor in pieces. Oracle: the same statistics of the whole at once, to the last bit."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

from transforms.calibrate import range_statistics
from transforms.calibrate.cache import decode, encode
from transforms.calibrate.histogram import Histogram
from transforms.calibrate.range_statistics import Moments, RangeStats, add_to_all

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1, 7, 300, 40), 1), ((3, 2, 30), 1), ((2, 5, 3000), -2), ((400, 9), -1), ((900,), 0)],
)
def test_moments_are_sums_over_all_samples(shape: tuple[int, ...], axis: int) -> None:
    samples = [(RANDOM.standard_normal(shape) * 10).astype(np.float32) for _ in range(2)]
    moments = Moments(axis)
    for x in samples:
        moments.add(x)
    both = np.moveaxis(np.stack(samples).astype(np.float64), 1 + axis % len(shape), 0).reshape(
        shape[axis], -1
    )
    assert moments.count == both.shape[1]
    assert np.allclose(moments.means[0], both.mean(axis=1), rtol=1e-12, atol=1e-12)
    assert np.allclose(moments.means[1], np.square(both).mean(axis=1), rtol=1e-12)


def test_moments_take_no_copy_of_a_tensor() -> None:
    x = np.ones((1, 8, 500_000), np.float32)
    moments = Moments(1)
    tracemalloc.start()
    moments.add(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 < x.nbytes


def test_samples_that_are_merged_are_those_that_are_added() -> None:
    samples = [(RANDOM.standard_normal((3, 8, 50)) * 2.0**i).astype(np.float32) for i in (0, 3, -2, 1)]
    samples[2][0, 1, 2] = np.inf
    one = RangeStats(histogram=Histogram(), moments={1: Moments(1), -1: Moments(-1)})
    merged = one.alike()
    for x in samples:
        add_to_all([one], x, 0.3)
        of_sample = merged.alike()
        add_to_all([of_sample], x, 0.3)
        merged.merge(of_sample, 0.3)
    assert encode(merged) == encode(one)


def test_several_statistics_of_a_tensor_are_those_that_are_made_one_by_one() -> None:
    samples = [(RANDOM.standard_normal((3, 8, 50)) * 2.0**i).astype(np.float32) for i in (0, 3, -2)]
    samples[1][0, 1, 2] = -np.inf
    kinds = [RangeStats(moments={1: Moments(1)}), RangeStats(histogram=Histogram(), moments={1: Moments(1)})]
    together = [one.alike() for one in kinds]
    for x in samples:
        add_to_all(together, x, 0.3)
        for one in kinds:
            add_to_all([one], x, 0.3)
    assert [encode(one) for one in together] == [encode(one) for one in kinds]
    add_to_all([], samples[0], 0.3)


def test_nan_and_infinities_are_left_out_of_all_statistics() -> None:
    spoilt = np.float32([[1, np.nan, np.inf], [3, -4, np.nan]])
    one, other = (RangeStats(histogram=Histogram(), moments={0: Moments(0)}) for _ in range(2))
    add_to_all([one], spoilt, 0.3)
    add_to_all([other], np.float32([[1], [3]]), 0.3)
    assert (one.low, one.high, one.has_nan, other.has_nan) == (-4, 3, True, False)
    assert one.histogram is not None and one.histogram.counts.sum() == 3
    assert decode(json.loads(json.dumps(encode(one)))).has_nan
    np.testing.assert_array_equal(one.moments[0].means[0], np.float64([1, -1]) / 3)


@pytest.mark.parametrize("width", [1, 3, 100])
def test_the_finite_range_of_pieces(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_statistics, "_SLICE", width)
    one = RangeStats()
    add_to_all([one], np.float32([np.inf, -np.inf, 3, -2, np.inf, 1]), 0.1)
    assert (one.low, one.high) == (-2, 3)
