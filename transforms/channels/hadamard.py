"""The orthogonal matrix that rotates channels: a Hadamard matrix beside a small cosine transform, with signs.

It keeps the vector of ones, so that the mean of a row stays the same. Of an outlying channel, each of n
channels gets at most about ``sqrt(2 / n)``: the largest numbers of the matrix are 1.5 to 2.5 ``n ** -0.5``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array

_SEED = 0


def rotated(values: NDArray[np.generic], axis: int) -> Float32Array:
    """Return an array with each vector x along an axis replaced by x R, R orthogonal [channels, channels]."""
    moved = np.moveaxis(np.asarray(values, np.float32), axis, -1)
    rows = np.ascontiguousarray(moved.reshape(-1, moved.shape[-1])) @ _matrix(moved.shape[-1])
    return np.ascontiguousarray(np.moveaxis(rows.reshape(moved.shape), -1, axis))


@lru_cache(maxsize=4)
def _matrix(channels: int) -> Float32Array:
    """Return R = D (H x C) E S: random signs D and E, a Hadamard matrix H, a transform C, a reflection S.

    H is Sylvester's, of the largest power of two, C the cosine transform (DCT-II) of the odd share of the
    channels. With both signs, the sums of rows and of columns are alike, and S changes all numbers little.
    """
    signs = np.random.default_rng(_SEED).choice(np.array([-1.0, 1.0]), (2, channels))
    return _keeping_ones(signs[0][:, None] * spreading(channels) * signs[1]).astype(np.float32)


def spreading(size: int) -> Float64Array:
    """Return H x C, an orthogonal matrix [size, size] of about equal magnitudes."""
    power = size & -size
    return np.asarray(np.kron(_hadamard(power), _cosine(size // power)), np.float64)


def _keeping_ones(matrix: Float64Array) -> Float64Array:
    """Return an orthogonal matrix times the Householder reflection S for which 1 R S = 1."""
    ones = np.full(len(matrix), len(matrix) ** -0.5)
    normal = ones @ matrix - ones
    square = normal @ normal
    if square < np.finfo(np.float64).eps:  # it keeps them already
        return matrix
    return matrix - np.outer(matrix @ normal, normal) * (2 / square)


def _hadamard(size: int) -> Float64Array:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix * size**-0.5


def _cosine(size: int) -> Float64Array:
    places = np.arange(size)
    matrix = np.sqrt(2 / size) * np.cos(np.pi * (places[:, None] + 0.5) * places / size)
    matrix[:, 0] = size**-0.5
    return matrix
