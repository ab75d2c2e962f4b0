"""Weights and products that share an input, for the tests of their fusion."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RANDOM = np.random.default_rng(11)


def integers(*shape: int) -> NDArray:
    return RANDOM.integers(-8, 9, shape).astype(np.float32)


WEIGHTS = {
    "wq": integers(8, 4),
    "wk": integers(8, 4),
    "wv": integers(8, 6),
    "tq": integers(4, 8),
    "tk": integers(6, 8),
    "bq": integers(4),
    "bk": integers(1, 1, 4),
    "bv": integers(6),
    "scalar": integers(),
    "square": integers(8, 8),
    "matrix": integers(5, 4),
    "batched": integers(2, 8, 4),
    "none": np.zeros((8, 0), np.float32),
}
PRODUCTS = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)"
PAIR = "q = MatMul(x, wq) k = MatMul(x, wk)"
PAIR_TYPES = {"inputs": "float[B,8] x", "outputs": "float[B,4] q, float[B,4] k"}
QKV = "float[B,T,4] q, float[B,T,4] k, float[B,T,6] v"
X = integers(2, 5, 8)
