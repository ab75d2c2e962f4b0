"""Oracle: exact arithmetic on fractions, and a search over all exponents."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ops.integers import dequantize, quantize, range_scale, weight_scale
from ops.powers_of_two import are_powers, ceil_power


def test_the_least_power_that_is_not_below() -> None:
    random = np.random.default_rng(0)
    numbers = [
        *np.exp(random.uniform(-80, 80, 500)),
        1.0,
        2.0,
        2.0**-30,
        np.nextafter(4, 5),
        np.nextafter(4, 3),
    ]
    for number, power in zip(numbers, ceil_power(numbers), strict=True):
        assert Fraction(float(power)) / 2 < Fraction(float(number)) <= Fraction(float(power))
    assert are_powers(ceil_power(numbers)) and not are_powers([1.0, 3.0])
    assert list(ceil_power([1e-45, 3e38])) == [2.0**-126, 2.0**127]


@pytest.mark.parametrize("fmt", ["int8", "uint8", "int16", "int4"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_ranges_are_covered_by_the_least_power(fmt: str, symmetric: bool) -> None:
    random = np.random.default_rng(1)
    for low, high in np.sort(random.standard_normal((50, 2)) * 10, axis=1):
        plain, _ = range_scale(low, high, fmt, symmetric=symmetric)
        scale, zero_point = range_scale(low, high, fmt, symmetric=symmetric, power_of_two=True)
        assert scale == ceil_power(plain)
        ends = np.float32([low, high, 0])
        back = dequantize(quantize(ends, scale, zero_point, fmt), scale, zero_point)
        assert np.abs(back - ends).max() <= (0.5 if symmetric else 1) * scale * 1.0001
        assert back[2] == 0


def test_no_scale_is_so_large_that_an_integer_is_infinite() -> None:
    for symmetric in (True, False):
        scale, _ = range_scale(-3e38, 3e38, "int8", symmetric=symmetric, power_of_two=True)
        assert are_powers(scale) and np.isfinite(np.float32(127) * scale)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_get_the_power_of_least_squared_error(axis: int | None, weighted: bool) -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        w = (random.standard_t(3, (4, 50)) * random.uniform(0.01, 10)).astype(np.float32)
        counts = random.uniform(0.1, 5, w.shape).astype(np.float32) if weighted else np.ones_like(w)
        found = weight_scale(
            w, "int8", axis, method="MSE", importance=counts if weighted else None, power_of_two=True
        )
        rows = [w[i : i + 1] for i in range(4)] if axis == 0 else [w]
        parts = [counts[i : i + 1] for i in range(4)] if axis == 0 else [counts]
        for row, part, scale in zip(rows, parts, found.reshape(-1), strict=True):
            assert are_powers(scale)
            errors = {e: _error(row, part, np.float32(2.0**e)) for e in range(-20, 10)}
            assert _error(row, part, scale) == pytest.approx(min(errors.values()), rel=1e-4)


def _error(w: np.ndarray, counts: np.ndarray, scale: np.float32) -> float:
    back = dequantize(quantize(w, scale, np.int8(0), "int8"), scale, np.int8(0))
    return float((counts * np.square((w - back).astype(np.float64))).sum())
