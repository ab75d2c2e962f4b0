"""Oracles: for a scale of all numbers there are, the best of the scales between any two of which the integers
stay the same; for the search itself, every candidate rounded as quantize and dequantize round."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops import FORMATS
from ops.block_scales import range_block_parameters, short_scales, signed_block_scales
from ops.integers import dequantize, quantize

SHORT = 2.0**-11  # rounding of a scale to float16, relative
RNG = np.random.default_rng(5)


def _error(row: np.ndarray, counts: np.ndarray, scale: float, zero: int, name: str) -> float:
    kind = FORMATS[name].dtype
    there = dequantize(
        quantize(row, np.float32(scale), np.array(zero, kind), name), np.float32(scale), np.array(zero, kind)
    )
    return float((counts * (row - there.astype(np.float64)) ** 2).sum())


def _least(row: np.ndarray, counts: np.ndarray, zero: int, name: str) -> float:
    """Return the error of the best scale of either sign for a zero point.

    Integers change where a number lies between two of them: each interval between such scales has one vector
    of integers, whose best scale has a closed form; no scale does better than the best of these.
    """
    low, high = int(FORMATS[name].lowest) - zero, int(FORMATS[name].highest) - zero
    halves = [step + 0.5 for step in range(low, high) if step + 0.5]
    ends = sorted({float(x) / half for x, half in itertools.product(row, halves) if x})
    tried = [*((a + b) / 2 for a, b in itertools.pairwise(ends)), ends[0] * 2, ends[-1] * 2]
    best = float((counts * row**2).sum())
    for scale in tried:
        if scale == 0:
            continue
        steps = np.clip(np.rint(row / scale), low, high)
        squares = (counts * steps * steps).sum()
        if squares:
            fitted = (counts * steps * row).sum() / squares
            best = min(best, float((counts * (row - steps * fitted) ** 2).sum()))
    return best


def _own(rows: np.ndarray) -> np.ndarray:
    return np.abs(rows) + np.sqrt((rows**2).mean(1, keepdims=True))


@pytest.mark.parametrize("name", ["int2", "int4"])
@pytest.mark.parametrize("size", [8, 16, 32])
def test_signed_scales_against_the_best_there_are(size: int, name: str) -> None:
    rows = RNG.standard_normal((60, size)).astype(np.float32)
    counts, scales = _own(rows), signed_block_scales(rows, FORMATS[name])
    found = np.array([_error(*one, 0, name) for one in zip(rows, counts, scales, strict=True)])
    least = np.array([_least(row, own, 0, name) for row, own in zip(rows, counts, strict=True)])
    assert (least <= found * (1 + 1e-6)).all(), "the oracle is none"
    assert found.sum() <= 1.1 * least.sum() + 1e-4


@pytest.mark.parametrize("name", ["uint2", "uint4"])
@pytest.mark.parametrize("size", [8, 16])
def test_zero_points_against_the_best_there_are(size: int, name: str) -> None:
    rows = (RNG.standard_normal((12, size)) + RNG.standard_normal((12, 1))).astype(np.float32)
    counts = np.ones_like(rows)
    parameters = range_block_parameters(rows, FORMATS[name], counts)
    found = np.array([_error(*one, name) for one in zip(rows, counts, *parameters, strict=True)])
    zeros = range(int(FORMATS[name].highest) + 1)
    least = np.array([min(_least(row, np.ones(size), z, name) for z in zeros) for row in rows])
    assert (least <= found * (1 + 1e-6)).all(), "the oracle is none"
    assert found.sum() <= 1.35 * least.sum()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.sampled_from(["int4", "uint4"]), st.booleans(), st.integers(0, 99))
def test_no_candidate_is_better(size: int, name: str, weighed: bool, seed: int) -> None:
    random, fmt = np.random.default_rng(seed), FORMATS[name]
    rows = (random.standard_normal((5, size)) * 10.0 ** random.integers(-3, 3, (5, 1))).astype(np.float32)
    importance = random.uniform(0.1, 2, rows.shape) if weighed else None
    own = _own(rows) if fmt.is_signed else rows**2 + (rows**2).mean(1, keepdims=True)
    counts = own if importance is None else importance
    if fmt.is_signed:
        scales, zeros = signed_block_scales(rows, fmt, importance), np.zeros(5, np.int64)
    else:
        scales, zeros = range_block_parameters(rows, fmt, importance)
    for row, own, scale, zero in zip(rows, counts, scales, zeros, strict=True):
        low, high = min(row.min(), 0), max(row.max(), 0)
        if fmt.is_signed:
            largest = row[np.abs(row).argmax()]
            tries = [_error(row, own, factor * largest / -8, 0, name) for factor in (0.75, 1, 1.1, -8 / 7)]
        else:
            whole = (high - low) / 15
            tries = [_error(row, own, whole, int(np.clip(np.rint(-low / whole), 0, 15)), name)]
        found = _error(row, own, scale, int(zero), name)
        assert found <= min(tries) * (1 + 8 * SHORT) + 64 * SHORT**2 * float((own * row**2).sum())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_number_has_the_further_end(sign: int) -> None:
    steps = RNG.integers(-7, 8, (20, 32))
    steps[:, 3] = -8
    rows = (steps * sign * np.float32(0.25)).astype(np.float32)
    scales = signed_block_scales(rows, FORMATS["int4"])
    assert (scales == sign * np.float32(0.25)).all()
    q = quantize(rows, scales, np.zeros(20, FORMATS["int4"].dtype), "int4", 0)
    np.testing.assert_array_equal(q.astype(np.int64), steps)


def test_numbers_on_a_grid_with_a_zero_point_are_kept() -> None:
    steps, zeros = RNG.integers(0, 16, (20, 32)), RNG.integers(0, 16, 20)
    steps[:, :2] = 0, 15
    rows = ((steps - zeros[:, None]) * np.float32(0.5)).astype(np.float32)
    scale, zero = range_block_parameters(rows, FORMATS["uint4"])
    assert (scale == 0.5).all()
    np.testing.assert_array_equal(zero.astype(np.int64), zeros)


def test_importance_decides_what_is_cut_off() -> None:
    row = np.append(np.linspace(-1, 1, 63), 3).astype(np.float32)[None]
    for name, search in (("int4", signed_block_scales), ("uint4", range_block_parameters)):
        errors = []
        for weight in (1e-3, 1e6):
            importance = np.append(np.ones(63), weight)[None]
            found = search(row, FORMATS[name], importance)
            scale, zero = found if isinstance(found, tuple) else (found, np.zeros(1, np.int8))
            there = dequantize(
                quantize(row, scale, zero.astype(FORMATS[name].dtype), name, 0),
                scale,
                zero.astype(FORMATS[name].dtype),
                0,
            )
            errors.append(abs(float(there[0, -1]) - 3))
        assert errors[0] > 0.4 and errors[1] < 0.05


def test_zeros_and_numbers_that_are_not_finite() -> None:
    rows = np.zeros((3, 4), np.float32)
    rows[1, 1:], rows[2, 0] = (np.nan, -np.inf, np.inf), 2
    rows[2, 1:] = np.nan, np.inf, -1
    scale = signed_block_scales(rows, FORMATS["int4"])
    wide, zero = range_block_parameters(rows, FORMATS["uint4"])
    assert (scale[:2] == 1).all() and (wide[:2] == 1).all() and (zero[:2] == 0).all()
    assert 0.2 < -scale[2] < 0.3 and 0.15 < wide[2] < 0.25


def test_all_sizes_of_numbers() -> None:
    sizes = np.array([1e-45, 1e-38, 1e-20, 1e-5, 1, 1e5, 1e20, 3e38])
    rows = (sizes[:, None] * np.linspace(-1, 0.9, 16)).astype(np.float32)
    scale = signed_block_scales(rows, FORMATS["int4"])
    wide, zero = range_block_parameters(rows, FORMATS["uint4"])
    assert np.isfinite(scale).all() and np.isfinite(wide).all() and (scale != 0).all() and (wide > 0).all()
    for name, parameters in (("int4", (scale, np.zeros(8, FORMATS["int4"].dtype))), ("uint4", (wide, zero))):
        there = dequantize(quantize(rows, *parameters, name, 0), *parameters, 0)
        off = np.abs(there.astype(np.float64) - rows).max(1) / sizes
        assert (off[2:] < 0.13).all(), "two thirds of a step"


def test_scales_fit_float16_where_that_has_all_its_bits() -> None:
    given = np.array([1 / 3, -1 / 3, 2.0**-14, 1e-6, 70000, -1e-30], np.float32)
    found = short_scales(given)
    np.testing.assert_array_equal(found[:3], given[:3].astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(found[3:], given[3:])
    scales = signed_block_scales(RNG.standard_normal((50, 32)).astype(np.float32), FORMATS["int4"])
    np.testing.assert_array_equal(scales, scales.astype(np.float16).astype(np.float32))


def test_numbers_of_short_rows_count_nearly_alike() -> None:
    """Large ones count more in long rows, at the price of the squared error."""
    fmt, more = FORMATS["uint4"], {}
    for size in (16, 128):
        rows = np.random.default_rng(0).standard_normal((2000, size)).astype(np.float32)
        errors = []
        for importance in (None, np.ones_like(rows)):
            scale, zero = (
                part[:, None].astype(np.float64) for part in range_block_parameters(rows, fmt, importance)
            )
            rounded = (np.clip(np.rint(rows / scale) + zero, fmt.lowest, fmt.highest) - zero) * scale
            errors.append(np.square(rows - rounded).sum())
        more[size] = errors[0] / errors[1]
    assert more[16] < 1.01 < 1.03 < more[128]
