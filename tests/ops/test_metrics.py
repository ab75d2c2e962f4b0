"""Oracles: scikit-image, SciPy, exact fractions, and values worked out by hand."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.spatial import distance
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from ops import metrics

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 50, 700)).astype(np.float32)
Y = X + 0.01 * RNG.standard_normal(X.shape).astype(np.float32)
EXACT = 1e-11
"""Relative slack for two float64 sums of n = 1e5 terms that differ in order: n * 2^-53 at worst."""

METRICS = [metrics.cosine, metrics.l2, metrics.psnr, metrics.sqnr]
PAIR_SHAPES = st.shared(array_shapes(min_dims=0, max_dims=4, max_side=5), key="shape")
NUMBERS = st.floats(-1000, 1000, width=32)


def by_fractions(x: np.ndarray, y: np.ndarray) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """Exact sums of x^2, y^2, x*y and (x - y)^2."""
    pairs = [(Fraction(float(a)), Fraction(float(b))) for a, b in zip(x.flat, y.flat, strict=True)]
    return (
        sum((a * a for a, _ in pairs), Fraction()),
        sum((b * b for _, b in pairs), Fraction()),
        sum((a * b for a, b in pairs), Fraction()),
        sum(((a - b) ** 2 for a, b in pairs), Fraction()),
    )


@given(arrays(np.float32, PAIR_SHAPES, elements=NUMBERS), arrays(np.float32, PAIR_SHAPES, elements=NUMBERS))
def test_sums_against_exact_arithmetic(x: np.ndarray, y: np.ndarray) -> None:
    totals = metrics.sums(x, y)
    xx, yy, xy, dd = map(float, by_fractions(x, y))
    assert math.isclose(totals.baseline_energy, xx, rel_tol=EXACT)
    assert math.isclose(totals.other_energy, yy, rel_tol=EXACT)
    assert math.isclose(totals.error_energy, dd, rel_tol=EXACT)
    assert math.isclose(totals.product, xy, rel_tol=EXACT, abs_tol=EXACT * math.sqrt(xx * yy))
    assert totals.count == x.size and totals.peak == np.abs(x).max(initial=0)


def test_cosine_against_scipy() -> None:
    wanted = 1 - distance.cosine(X.ravel().astype(float), Y.ravel().astype(float))
    assert metrics.cosine(X, Y) == pytest.approx(wanted, rel=EXACT)


def test_l2_against_scipy() -> None:
    wanted = distance.euclidean(X.ravel().astype(float), Y.ravel().astype(float))
    assert metrics.l2(X, Y) == pytest.approx(wanted, rel=EXACT)


@pytest.mark.parametrize("peak", [1.0, 4.0, 255.0])
def test_psnr_against_scikit_image(peak: float) -> None:
    wanted = peak_signal_noise_ratio(X.astype(float), Y.astype(float), data_range=peak)
    assert metrics.psnr(X, Y, peak) == pytest.approx(wanted, rel=EXACT)


def test_psnr_peak_is_the_largest_magnitude() -> None:
    x = np.array([-4.0, 1.0, 2.0])
    assert metrics.psnr(x, x + 0.5) == pytest.approx(10 * math.log10(16 / 0.25))


def test_psnr_of_negative_arrays_is_not_negative() -> None:
    """A peak of max(x) instead of max|x| makes this a wild number."""
    x = -np.abs(X)
    assert metrics.psnr(x, x * 0.999) > 40


def test_psnr_peak_of_8_bit_images() -> None:
    x, y = np.full((8, 8), 100, np.uint8), np.full((8, 8), 101, np.uint8)
    assert metrics.psnr(x, y) == pytest.approx(20 * math.log10(255))
    assert metrics.psnr(x, y) == pytest.approx(peak_signal_noise_ratio(x, y))


def test_unsigned_integers_do_not_wrap_around() -> None:
    assert metrics.l2(np.array([0, 255], np.uint8), np.array([255, 0], np.uint8)) == math.hypot(255, 255)


def test_sqnr_by_hand() -> None:
    assert metrics.sqnr([3.0, 4.0], [3.0, 4.5]) == pytest.approx(20.0)


def test_sqnr_against_numpy() -> None:
    wanted = 10 * np.log10(np.var(X.astype(float)) + np.mean(X.astype(float)) ** 2)
    wanted -= 10 * np.log10(np.mean((X.astype(float) - Y) ** 2))
    assert metrics.sqnr(X, Y) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("metric", "equal"),
    [(metrics.cosine, 1), (metrics.l2, 0), (metrics.psnr, math.inf), (metrics.sqnr, math.inf)],
)
@pytest.mark.parametrize(
    "array", [X, np.zeros(3), np.zeros((0, 4)), np.array(2.5), np.array([1e-45], np.float32)]
)
def test_equal_arrays(metric: metrics.sums, equal: float, array: np.ndarray) -> None:
    assert metric(array, array.copy()) == equal


def test_error_on_a_baseline_of_zeros() -> None:
    zeros, ones = np.zeros(4), np.ones(4)
    assert [m(zeros, ones) for m in METRICS] == [0, 2, -math.inf, -math.inf]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_non_finite_elements_are_counted_and_spoil_only_their_pair(bad: float, side: int) -> None:
    pair = [np.ones(20_000, np.float32), np.ones(20_000, np.float32)]
    pair[side][[5, 19_999]] = bad
    totals = metrics.sums(*pair)
    assert (totals.baseline_non_finite, totals.other_non_finite) == ((2, 0), (0, 2))[side]
    assert all(math.isnan(metric(*pair)) for metric in METRICS)


def test_infinities_of_both_sides_do_not_cancel() -> None:
    x = np.array([-math.inf, 1.0])
    assert metrics.sums(x, x).non_finite == 2 and math.isnan(metrics.sqnr(x, x))


def test_float32_maximum_does_not_overflow() -> None:
    x = np.full(9, 3e38, np.float32)
    assert metrics.sums(x, -x).non_finite == 0 and metrics.cosine(x, -x) == -1


def test_sums_add_up_over_arrays() -> None:
    whole, parts = metrics.sums(X, Y), metrics.Sums()
    for x, y in zip(X, Y, strict=True):
        parts.add(x, y)
    assert parts.sqnr() == pytest.approx(whole.sqnr(), rel=EXACT)
    assert (parts.count, parts.peak) == (whole.count, whole.peak)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64, np.bool_, ml_dtypes.bfloat16])
def test_every_real_type(dtype: type) -> None:
    x, y = np.array([1, 0, 1]).astype(dtype), np.array([1, 1, 1]).astype(dtype)
    assert metrics.l2(x, y) == 1


def test_types_may_differ() -> None:
    assert metrics.l2(np.float32([0.5, 2]), np.float64([0.5, 1])) == 1


def test_any_memory_layout() -> None:
    assert metrics.l2(X.transpose(2, 0, 1)[::-3], Y.transpose(2, 0, 1)[::-3]) == pytest.approx(
        np.linalg.norm((X.transpose(2, 0, 1)[::-3].astype(float) - Y.transpose(2, 0, 1)[::-3]).ravel())
    )


def test_inputs_are_not_changed() -> None:
    x, y = X.astype(np.float64), Y.astype(np.float64)
    x.flags.writeable = y.flags.writeable = False
    metrics.sums(x, y)
    assert np.array_equal(x, X.astype(np.float64)) and np.array_equal(y, Y.astype(np.float64))


@pytest.mark.parametrize("metric", [*METRICS, metrics.ssim])
def test_shapes_must_agree(metric: metrics.sums) -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \[2, 3\] in the baseline, \[3, 2\] in the other"):
        metric(np.zeros((2, 3)), np.zeros((3, 2)))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([None]), np.zeros(2, "V2")])
def test_elements_must_be_real_numbers(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not real numbers"):
        metrics.cosine(array, array)


def test_no_temporary_of_the_size_of_the_arrays() -> None:
    x = np.zeros(1 << 22, np.float32)
    tracemalloc.start()
    metrics.sums(x, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 16


PICTURE = RNG.integers(0, 256, (32, 48), np.uint8)
NOISY = np.clip(PICTURE + RNG.integers(-20, 20, PICTURE.shape), 0, 255).astype(np.uint8)


def test_ssim_of_a_grey_image() -> None:
    assert metrics.ssim(PICTURE, NOISY) == pytest.approx(
        structural_similarity(PICTURE, NOISY, data_range=255)
    )


@pytest.mark.parametrize(("shape", "axis"), [((3, 32, 48), 0), ((32, 48, 3), 2)])
def test_ssim_of_colour_images(shape: tuple[int, ...], axis: int) -> None:
    x = RNG.random(shape)
    y = x + 0.1 * RNG.random(shape)
    wanted = structural_similarity(x, y, channel_axis=axis, data_range=np.abs(x).max())
    assert metrics.ssim(x, y) == pytest.approx(wanted)


@pytest.mark.parametrize("shape", [(2, 3, 16, 20), (2, 16, 20, 3), (5, 1, 9, 7)])
def test_ssim_of_batches(shape: tuple[int, ...]) -> None:
    x = RNG.random(shape)
    y = x + 0.1 * RNG.random(shape)
    axis = 0 if shape[1] in (1, 3) else 2
    each = [structural_similarity(a, b, channel_axis=axis, data_range=2.0) for a, b in zip(x, y, strict=True)]
    assert metrics.ssim(x, y, peak=2.0) == pytest.approx(np.mean(each))


def test_ssim_of_8_by_8_by_hand() -> None:
    """Constant images have no variance: SSIM is (2ab + C1) / (a^2 + b^2 + C1)."""
    a, b, c1 = 100.0, 120.0, (0.01 * 255) ** 2
    x, y = np.full((8, 8), 100, np.uint8), np.full((8, 8), 120, np.uint8)
    assert metrics.ssim(x, y) == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.bool_])
def test_ssim_of_rarer_types(dtype: type) -> None:
    x, y = (PICTURE > 100).astype(dtype), (NOISY > 100).astype(dtype)
    wanted = structural_similarity((PICTURE > 100).astype(float), (NOISY > 100).astype(float), data_range=1)
    assert metrics.ssim(x, y, peak=1) == pytest.approx(wanted, rel=1e-5)  # computed in float32


def test_ssim_edges() -> None:
    zeros = np.zeros((8, 8))
    assert metrics.ssim(PICTURE, PICTURE.copy()) == 1
    assert metrics.ssim(zeros, zeros.copy()) == 1
    assert math.isnan(metrics.ssim(zeros, zeros + 1)), "no peak, no data range"
    assert math.isnan(metrics.ssim(zeros, zeros + math.nan))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((), "not that of an image"),
        ((10,), "not that of an image"),
        ((1, 1000), "smaller than the window of 7"),
        ((16, 56, 56), "not that of an image"),
        ((1, 64, 56, 56), "not that of an image"),
        ((3, 6, 20), "smaller than the window of 7"),
        ((7, 7), ""),
        ((1, 3, 224, 224), ""),
        ((224, 224, 4), ""),
    ],
)
def test_what_is_an_image(shape: tuple[int, ...], reason: str) -> None:
    assert metrics.why_no_ssim(shape).endswith(reason) and bool(metrics.why_no_ssim(shape)) == bool(reason)


def test_ssim_refuses_what_is_no_image() -> None:
    with pytest.raises(ValueError, match=r"no SSIM: shape \[10\] is not that of an image"):
        metrics.ssim(np.zeros(10), np.ones(10))


def test_sums_of_numbers_leave_out_what_is_none_in_the_baseline() -> None:
    x = np.float32([[1, np.inf, 3], [np.nan, -5, -np.inf]])
    y = np.float32([[2, 0, 3], [7, -4, -np.inf]])
    found = metrics.sums_of_numbers(x, y)
    assert (found.count, found.error_energy, found.baseline_energy) == (3, 2, 35)
    y[0, 0] = np.nan
    assert math.isnan(metrics.sums_of_numbers(x, y).error_energy), "NaN of the other is an error"
    with pytest.raises(ValueError):
        metrics.sums_of_numbers(x, y[:1])


@pytest.mark.parametrize(
    ("error", "power", "wanted"),
    [
        (0.01, 1.0, 20.0),
        (1.0, 1e-3, -30.0),
        (0.0, 0.0, math.inf),
        (1.0, 0.0, -math.inf),
        (math.inf, 1.0, -math.inf),
        (math.nan, 1.0, -math.inf),
    ],
)
def test_decibels(error: float, power: float, wanted: float) -> None:
    assert metrics.decibels(error, power) == pytest.approx(wanted)
    assert metrics.in_decibels(error) == f"{metrics.decibels(error):.1f}"
