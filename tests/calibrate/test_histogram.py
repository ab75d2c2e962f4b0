"""Oracle: numpy.histogram over the same edges, which one pass over all numbers at once fills."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from transforms.calibrate.histogram import BINS, Histogram, fold

RANDOM = np.random.default_rng(0)


def filled(*arrays: NDArray[np.float32]) -> Histogram:
    histogram = Histogram()
    for array in arrays:
        histogram.add(array, float(array.min(initial=np.inf)), float(array.max(initial=-np.inf)))
    return histogram


def expected(x: NDArray[np.float32], histogram: Histogram) -> NDArray[np.int64]:
    return np.histogram(x.astype(np.float64), histogram.edges)[0]


@pytest.mark.parametrize("size", [1, 1000, 200_000])
@pytest.mark.parametrize("spread", [1e-20, 0.37, 1.0, 3e30])
def test_counts_are_those_of_numpy(size: int, spread: float) -> None:
    x = (RANDOM.standard_normal(size) * spread).astype(np.float32)
    histogram = filled(x)
    assert np.array_equal(histogram.counts, expected(x, histogram))
    assert histogram.bound / 2 <= np.abs(x).max() < histogram.bound


def test_edges() -> None:
    histogram = filled(np.float32([3]))
    assert histogram.bound == 4 and len(histogram.edges) == BINS + 1
    assert histogram.edges[[0, BINS // 2, -1]].tolist() == [-4, 0, 4]
    assert np.all(np.diff(histogram.edges) == histogram.bin_width)


@pytest.mark.parametrize("growth", [1, 2, 7, 11, 12, 13, 60])
def test_growth_is_exact(growth: int) -> None:
    small = RANDOM.standard_normal(5000).astype(np.float32)
    large = small[:100] * np.float32(2.0**growth)
    histogram = filled(small, large)
    assert np.array_equal(histogram.counts, expected(np.concatenate([small, large]), histogram))


def test_numbers_of_small_samples_are_there_at_once() -> None:
    """Whether they wait to be counted or not; the bound grows meanwhile, and infinite numbers never count."""
    histogram, seen = Histogram(), np.zeros(0, np.float32)
    for i in range(40):
        x = RANDOM.standard_normal(50).astype(np.float32) * np.float32(2.0 ** (i % 7))
        seen = np.concatenate([seen, x])
        ends = float(x.min()), float(x.max())
        if i % 3:
            histogram.add(x, *ends)
        else:
            histogram.add(np.append(x, np.float32(np.inf)), *ends, finite=False)
        x[:] = np.nan  # a tensor is there while it is added, no longer
        if i % 4 == 0:
            assert np.array_equal(histogram.counts, expected(seen, histogram))
    other = filled(np.float32([1e6, -3]))
    histogram.merge(other)
    assert np.array_equal(histogram.counts, expected(np.append(seen, np.float32([1e6, -3])), histogram))


def test_bins_lie_at_numbers_on_edges_and_next_to_them() -> None:
    edges = filled(np.float32([1])).edges[1:-1].astype(np.float32)
    x = np.concatenate([edges, np.nextafter(edges, np.float32(-9)), np.nextafter(edges, np.float32(9))])
    histogram = filled(x)
    assert histogram.bound == 2 and np.array_equal(histogram.counts, expected(x, histogram))


NUMBERS = st.just(0.0) | st.floats(width=32, min_value=2.0**-40, max_value=2.0**40)
SIGNED = st.builds(lambda number, sign: sign * number, NUMBERS, st.sampled_from([-1, 1]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(SIGNED, max_size=9), max_size=6))
def test_order_does_not_matter(samples: list[list[float]]) -> None:
    arrays = [np.array(sample, np.float32) for sample in samples]
    once = filled(np.array([number for sample in samples for number in sample], np.float32))
    for other in (filled(*arrays), filled(*arrays[::-1])):
        assert once.exponent == other.exponent and np.array_equal(once.counts, other.counts)


def test_signs_of_the_tiniest_numbers() -> None:
    tiny = np.float32([1e-45, -1e-45, 0.0, -0.0, 1e-38, -1e-38])
    counts = filled(tiny).counts
    assert counts[BINS // 2] == 4 and counts[BINS // 2 - 1] == 2
    counts = filled(tiny, np.float32([1e38])).counts
    assert counts[BINS // 2] == 4 and counts[BINS // 2 - 1] == 2


def test_magnitudes() -> None:
    """A bin of magnitudes ends with the edge of the negative one that it takes in."""
    x = np.append(RANDOM.standard_normal(10_000), [-1.5, 1.5]).astype(np.float32)
    histogram = filled(x)
    edges = histogram.edges[BINS // 2 :]
    assert 1.5 in edges
    inside = np.where(x < 0, np.nextafter(-x, np.float32(0)), x)
    assert np.array_equal(fold(histogram.counts), np.histogram(inside, edges)[0])


def test_zeros_are_set_aside() -> None:
    x = np.concatenate([RANDOM.uniform(-1, 1, 100_000), np.zeros(50_000)]).astype(np.float32)
    histogram = filled(x)
    counts, kept = histogram.counts, histogram.counts_but_zeros
    assert counts[BINS // 2] > 50_000 and kept[BINS // 2] == counts[BINS // 2 + 1] < 100
    assert np.array_equal(np.delete(kept, BINS // 2), np.delete(counts, BINS // 2))
    few = filled(np.float32([0.1, 0.1, 0.9])).counts_but_zeros
    assert few.sum() == 3, "nothing is taken from a bin that holds no more than the next"


def test_largest_floats() -> None:
    largest = np.finfo(np.float32).max
    histogram = filled(np.float32([largest, -largest, 0]))
    assert histogram.bound == 2.0**128 and histogram.counts[[0, BINS // 2, -1]].tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(0,), (), (2, 3, 4)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    assert filled(np.ones(shape, np.float32)).counts.sum() == np.prod(shape)


def test_strides_and_input_unharmed() -> None:
    x = RANDOM.standard_normal((50, 60)).astype(np.float32)
    view, before = x[::2, ::3].T, x.copy()
    histogram = filled(view)
    assert np.array_equal(histogram.counts, expected(view, histogram)) and np.array_equal(x, before)


def test_memory_does_not_grow_with_the_array() -> None:
    x = np.zeros(4_000_000, np.float32)
    histogram = filled(x[:1])
    tracemalloc.start()
    histogram.add(x, 0, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000 < x.nbytes


def test_memory_of_few_numbers() -> None:
    """Oracle: four bytes for each number, or one for each bin, and 2 kB of Python objects."""
    arrays = [RANDOM.standard_normal(300).astype(np.float32) for _ in range(50)]
    tracemalloc.start()
    kept = [filled(array) for array in arrays]
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < len(kept) * (4 * 300 + 2000)


def test_large_counts() -> None:
    counts = np.zeros(BINS, np.int64)
    counts[[0, 7, -1]] = 1, 2**40, 2**62
    assert np.array_equal(Histogram(3, counts).counts, counts)


@pytest.mark.parametrize("spread", [1e-30, 1.0, 2.0**20, 3e30])
def test_histograms_that_are_merged_are_that_of_all_numbers(spread: float) -> None:
    """Bit for bit, in any order, with numbers that underflow when they are divided by the bound."""
    normal = RANDOM.standard_normal(5000).astype(np.float32)
    tiny = np.float32([-1e-45, 1e-45, -1e-40, -0.0, 0.0, -1e-38])
    arrays = [tiny, (normal * spread).astype(np.float32), normal, -tiny[::-1]]
    whole = filled(np.concatenate(arrays))
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 0, 3, 1]):
        merged = Histogram()
        for i in order:
            merged.merge(filled(arrays[i]))
        assert merged.exponent == whole.exponent and np.array_equal(merged.counts, whole.counts)
        assert np.array_equal(filled(*(arrays[i] for i in order)).counts, whole.counts)


def test_infinite_numbers_are_passed_over() -> None:
    x = np.float32([1, np.inf, -2, -np.inf])
    histogram = Histogram()
    histogram.add(x, -2, 1, finite=False)
    assert np.array_equal(histogram.counts, filled(x[np.isfinite(x)]).counts)
