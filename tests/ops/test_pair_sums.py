"""Oracle: sums that add the products of two neighbours in saturating 16 bits, as x86 without VNNI does."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ops.integers import quantize, weight_scale
from ops.pair_sums import LARGEST_PAIR, pair_scale

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "even": RANDOM.standard_normal((64, 24)),
    "odd": RANDOM.standard_normal((33, 24)),
    "one row": RANDOM.standard_normal((1, 24)),
    "equal": np.full((64, 24), 0.3),
    "alternating": np.where(np.arange(64)[:, None] % 2, 0.3, -0.3) * np.ones(24),
    "zeros": np.zeros((64, 24)),
    "subnormal": np.full((64, 24), 1e-44),
}
PER_CHANNEL = [None, 1]


def paired(activations: NDArray[np.uint8], q: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return activations [K] times integers [K, N], the sums of pairs in saturating 16 bits."""
    products = activations.astype(np.int64)[:, None] * q
    padded = np.concatenate([products, np.zeros((len(products) % 2, q.shape[1]), np.int64)])
    return np.clip(padded.reshape(-1, 2, q.shape[1]).sum(1), -(2**15), 2**15 - 1).sum(0)


def integers(w: NDArray[np.float32], axis: int | None) -> NDArray[np.int8]:
    scale = np.maximum(weight_scale(w, "int8", axis), pair_scale(w, 0, axis))
    return np.asarray(quantize(w, scale, np.zeros(scale.shape, np.int8), "int8", axis))


@pytest.mark.parametrize("axis", PER_CHANNEL)
@pytest.mark.parametrize("name", WEIGHTS)
def test_no_activations_saturate(name: str, axis: int | None) -> None:
    """The largest activations where a pair is positive, or negative, are the worst that can occur."""
    q = integers(WEIGHTS[name].astype(np.float32), axis)
    for column in range(q.shape[1]):
        for sign in (1, -1):
            activations = np.where(sign * q[:, column] > 0, 255, 0).astype(np.uint8)
            exact = activations.astype(np.int64) @ q.astype(np.int64)
            np.testing.assert_array_equal(paired(activations, q), exact)


def test_plain_scales_saturate() -> None:
    """What the bound is for: with scales of the largest magnitudes the oracle sees wrong sums."""
    w = WEIGHTS["equal"].astype(np.float32)
    q = np.asarray(quantize(w, weight_scale(w, "int8", 1), np.zeros(24, np.int8), "int8", 1))
    activations = np.full(64, 255, np.uint8)
    assert (paired(activations, q) != activations.astype(np.int64) @ q.astype(np.int64)).all()


def test_scales_are_no_larger_than_pairs_need() -> None:
    """A pair of equal numbers reaches 126 or more of 128; numbers of two signs need no larger scale."""
    q = integers(WEIGHTS["equal"].astype(np.float32), 1).astype(int)
    assert LARGEST_PAIR - 2 <= (q[::2] + q[1::2]).max() <= LARGEST_PAIR
    w = WEIGHTS["alternating"].astype(np.float32)
    assert not pair_scale(w, 0, 1).any()


def test_numbers_that_are_not_finite_are_ignored() -> None:
    w = WEIGHTS["even"].astype(np.float32)
    expected = pair_scale(w[2:], 0, 1)
    w[0], w[1] = np.inf, -np.inf
    np.testing.assert_array_equal(pair_scale(w, 0, 1), expected)


def test_other_axes() -> None:
    w = RANDOM.standard_normal((3, 8, 6)).astype(np.float32)
    sums = np.abs(w[:, ::2] + w[:, 1::2])
    np.testing.assert_array_equal(pair_scale(w, 1), sums.max() / np.float32(127))
    np.testing.assert_array_equal(pair_scale(w, 1, 2), sums.max((0, 1)) / np.float32(127))
    np.testing.assert_array_equal(pair_scale(w.swapaxes(1, 2), 2, 1), pair_scale(w, 1, 2))
