"""Oracle: every candidate tried out, with integers as quantize and dequantize make them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ops
from ops.integers import ALPHAS, dequantize, finite_range, quantize, range_scale, weight_range

RNG = np.random.default_rng(12)
W = (RNG.standard_normal((4, 15)) ** 3 + 0.3).astype(np.float32)
IMPORTANCE = RNG.uniform(0, 2, W.shape)
CASES = [(name, axis) for name in ("uint4", "int4", "uint8", "int8") for axis in (None, 0, 1)]


def _errors(w: np.ndarray, scale: Any, zero: Any, name: str, axis: int | None) -> np.ndarray:
    """Return the weighted error of each index of the axis, or in all, for one scale and zero point each."""
    there = dequantize(quantize(w, scale, zero, name, axis), scale, zero, axis).astype(np.float64)
    other = None if axis is None else 1 - axis
    return np.asarray((IMPORTANCE * (w - there) ** 2).sum(other))


def _ends(scale: Any, zero: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    row, points = ops.FORMATS[name], np.asarray(zero).astype(np.float64)
    return (row.lowest - points) * scale, (row.highest - points) * scale


def _search(w: np.ndarray, importance: np.ndarray, name: str) -> tuple[Any, Any]:
    """Return scale and zero point for some numbers: each end in turn, twice, every candidate tried out."""
    whole = [min(w.min(), 0.0), max(w.max(), 0.0)]
    ends = [float(end) for end in whole]
    for i in (0, 1, 0, 1):
        found = []
        for alpha in ALPHAS:
            ends[i] = alpha * whole[i]
            scale, zero = range_scale(*ends, name, symmetric=False)
            there = dequantize(quantize(w, scale, zero, name), scale, zero).astype(np.float64)
            found.append((importance * (w - there) ** 2).sum())
        ends[i] = ALPHAS[np.argmin(found)] * whole[i]
    return range_scale(*ends, name, symmetric=False)


@pytest.mark.parametrize(("name", "axis"), CASES)
def test_both_ends_are_searched_in_turn(name: str, axis: int | None) -> None:
    scale, zero = weight_range(W, name, axis, importance=IMPORTANCE)
    assert scale.dtype == np.float32 and zero.dtype == ops.FORMATS[name].dtype
    assert scale.shape == zero.shape == (() if axis is None else (W.shape[axis],))
    parts = [slice(None)] if axis is None else np.ndindex(W.shape[axis])
    for i, part in enumerate(parts):
        own = part if axis is None else np.s_[:, part[0]] if axis else part
        expected = _search(W[own].reshape(-1), IMPORTANCE[own].reshape(-1), name)
        assert (scale.reshape(-1)[i], zero.reshape(-1)[i]) == expected


@pytest.mark.parametrize(("name", "axis"), CASES)
def test_no_worse_than_the_whole_range_nor_than_one_end_moved(name: str, axis: int | None) -> None:
    least = _errors(W, *weight_range(W, name, axis, importance=IMPORTANCE), name, axis)
    low, high = finite_range(W, axis)
    for alpha in ALPHAS:
        moved = range_scale(alpha * low, high, name, symmetric=False)
        assert (least <= _errors(W, *moved, name, axis) * (1 + 1e-5)).all()  # sums in float32


def test_an_outlier_moves_its_own_end() -> None:
    """10,000 numbers in [-1, 1] and one 3 in 4 bits: a finer step for all is worth more than the one."""
    w = np.append(np.linspace(-1, 1, 10_000), 3).astype(np.float32)
    scale, zero = weight_range(w, "uint4")
    low, high = _ends(scale, zero, "uint4")
    assert high < 1.6 and abs(low + 1) < 0.2


def test_importance_decides_what_is_cut_off() -> None:
    w = np.append(np.linspace(-1, 1, 1000), 3).astype(np.float32)
    importance = np.append(np.ones(1000), 1e6)
    _, high = _ends(*weight_range(w, "uint4", importance=importance), "uint4")
    assert abs(high - 3) < 0.2


def test_zeros_have_scale_one() -> None:
    scale, zero = weight_range(np.zeros((2, 3), np.float32), "uint8", 0)
    assert (scale == 1).all() and (zero == 0).all()


def test_errors() -> None:
    with pytest.raises(ValueError, match="'bfp16' has no scale"):
        weight_range(W, "bfp16")
    with pytest.raises(ValueError, match="axis 2 is out of range"):
        weight_range(W, "uint8", 2)
    with pytest.raises(ValueError, match=r"importance \[3\] does not fit"):
        weight_range(W, "uint8", importance=np.ones(3))
