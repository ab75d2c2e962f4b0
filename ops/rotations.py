"""Orthogonal matrices that spread each number over all others, of any size, the same on every machine."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ops.array_types import Float64Array

_GOLDEN = (5**0.5 - 1) / 2


def rotate(x: Float64Array) -> Float64Array:
    """Multiply vectors [..., size] with an orthogonal and symmetric matrix; once more gives ``x`` again.

    It is the Kronecker product of a Hadamard matrix (Sylvester's, of the largest power of two that divides
    the size), which QuaRot takes (arXiv 2404.00456), and the matrix of Hartley's transform for the rest. Rows
    and columns have fixed signs: numbers that are alike would all go into the first otherwise. No entry is
    larger than sqrt(2 / size), and for powers of two all are sqrt(1 / size).
    """
    return np.asarray(x @ _matrix(x.shape[-1]))


@lru_cache(maxsize=2)
def _matrix(size: int) -> Float64Array:
    matrix, rest = np.ones((1, 1)), size
    while rest % 2 == 0:
        matrix, rest = np.block([[matrix, matrix], [matrix, -matrix]]), rest // 2
    angles = 2 * np.pi / rest * (np.outer(np.arange(rest), np.arange(rest)) % rest)
    signs = _signs(size)
    return signs[:, None] * np.kron(matrix, np.cos(angles) + np.sin(angles)) * signs / np.sqrt(size)


def _signs(size: int) -> Float64Array:
    """Return signs that follow no frequency: of squares times the golden ratio, the first +1."""
    return np.where(np.square(np.arange(size, dtype=np.float64)) * _GOLDEN % 1 < 0.5, 1.0, -1.0)
