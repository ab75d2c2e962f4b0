"""Statistics of a tensor in pieces. Oracle: the same statistics of the whole at once, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.calibrate import range_statistics
from transforms.calibrate.histogram import Histogram
from transforms.calibrate.range_statistics import Moments, RangeStats, add_to_all, encode

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 7, 300, 40), 1),
        ((3, 7, 30, 40), 1),
        ((3, 2, 300, 40), 1),
        ((2, 5, 3000), -2),
        ((4000, 9), -1),
        ((1, 12_000), 1),
        ((12_000, 1), 1),
        ((3, 40, 101), 2),
        ((90_000,), 0),
        ((5, 1, 9000), 1),
        ((2, 3, 4, 500), 3),
    ],
)
@pytest.mark.parametrize("width", [1, 1000, 20_000])
def test_squares_are_summed_in_slices(
    shape: tuple[int, ...], axis: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (RANDOM.standard_normal(shape) * 10).astype(np.float32)
    others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    whole = np.square(x, dtype=np.float64).sum(axis=others)
    monkeypatch.setattr(range_statistics, "_SLICE", width)
    moments = Moments(axis)
    moments.add(x)
    assert moments.squares is not None and moments.squares.tobytes() == whole.tobytes()


def test_samples_that_are_merged_are_those_that_are_added() -> None:
    samples = [(RANDOM.standard_normal((3, 8, 50)) * 2.0**i).astype(np.float32) for i in (0, 3, -2, 1)]
    samples[2][0, 1, 2] = np.inf
    one = RangeStats(histogram=Histogram(), moments={1: Moments(1), -1: Moments(-1)})
    merged = one.alike()
    for x in samples:
        one.add_array(x, 0.3)
        of_sample = merged.alike()
        of_sample.add_array(x, 0.3)
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
            one.add_array(x, 0.3)
    assert [encode(one) for one in together] == [encode(one) for one in kinds]
    add_to_all([], samples[0], 0.3)
    with pytest.raises(ValueError, match="NaN"):
        add_to_all(together, np.float32([np.nan]), 0.3)


@pytest.mark.parametrize("width", [1, 3, 100])
def test_the_finite_range_of_pieces(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_statistics, "_SLICE", width)
    one = RangeStats()
    one.add_array(np.float32([np.inf, -np.inf, 3, -2, np.inf, 1]), 0.1)
    assert (one.low, one.high) == (-2, 3)
