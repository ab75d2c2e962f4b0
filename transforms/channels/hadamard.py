"""The orthogonal matrix that turns channels: signs, then a Hadamard matrix beside a small cosine transform.

An outlying channel is spread over all others: each of these gets at most ``sqrt(2 / n)`` of it, for n
channels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array

_SEED = 0


def turned(values: NDArray[np.generic], axis: int) -> Float32Array:
    """Return an array with each vector x along an axis replaced by x R, R orthogonal [channels, channels]."""
    moved = np.moveaxis(np.asarray(values, np.float32), axis, -1)
    rows = np.ascontiguousarray(moved.reshape(-1, moved.shape[-1])) @ _matrix(moved.shape[-1])
    return np.ascontiguousarray(np.moveaxis(rows.reshape(moved.shape), -1, axis))


@lru_cache(maxsize=4)
def _matrix(channels: int) -> Float32Array:
    """Return R = D (H x C): random signs D, a Hadamard matrix H of the largest power of two, a transform C.

    The Hadamard matrix is Sylvester's, C the cosine transform (DCT-II) of the odd share of the channels.
    """
    power = channels & -channels
    signs = np.random.default_rng(_SEED).choice(np.array([-1.0, 1.0]), channels)
    return (signs[:, None] * np.kron(_hadamard(power), _cosine(channels // power))).astype(np.float32)


def _hadamard(size: int) -> Float64Array:
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found * size**-0.5


def _cosine(size: int) -> Float64Array:
    places = np.arange(size)
    found = np.sqrt(2 / size) * np.cos(np.pi * (places[:, None] + 0.5) * places / size)
    found[:, 0] = size**-0.5
    return found
