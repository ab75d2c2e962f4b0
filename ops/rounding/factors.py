"""Factors U D U^T of symmetric positive definite matrices, and the equations that they solve.

NumPy's own functions reach a quarter of the speed of its products. Here large matrices are taken in blocks,
the last one first, so that nearly all the work is products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.array_types import Float64Array

AT_ONCE = 96
"""Rows and columns of a block; up to there NumPy factorizes a matrix at once."""


def unit_upper(matrix: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return U and the diagonal of D of U D U^T, matrices [..., K, K] with U's diagonal of ones.

    Raises LinAlgError for a matrix that is not positive definite.
    """
    lower = np.linalg.cholesky(matrix[..., ::-1, ::-1])
    diagonal = np.diagonal(lower, axis1=-2, axis2=-1)
    unit = (lower / diagonal[..., None, :])[..., ::-1, ::-1]
    return np.ascontiguousarray(unit), np.square(diagonal[..., ::-1])


@dataclass(frozen=True)
class Factors:
    """``unit``, U [..., K, K] with a diagonal of ones, and the ``diagonal`` [..., K] of D.

    ``inverses``: those of the blocks on U's diagonal.
    """

    unit: Float64Array
    diagonal: Float64Array
    inverses: list[Float64Array]

    @classmethod
    def of(cls, matrix: Float64Array) -> Factors:
        """Return those of a matrix [..., K, K]; LinAlgError if it is not positive definite."""
        size = matrix.shape[-1]
        unit, diagonal = np.zeros_like(matrix), np.empty(matrix.shape[:-1])
        inverses = list[Float64Array]()
        for start, end in reversed(_blocks(size)):
            scaled = unit[..., start:end, end:] * diagonal[..., None, end:]
            rest = matrix[..., :end, start:end] - unit[..., :end, end:] @ _turned(scaled)
            own, diagonal[..., start:end] = unit_upper(rest[..., start:, :])
            inverses.insert(0, np.asarray(np.linalg.inv(own), np.float64))
            above = rest[..., :start, :] @ _turned(inverses[0])
            unit[..., :start, start:end] = above / diagonal[..., None, start:end]
            unit[..., start:end, start:end] = own
        return cls(unit, diagonal, inverses)

    def solve(self, right: Float64Array) -> Float64Array:
        """Return what [..., N, K] times the matrix is ``right``."""
        unit, found = self.unit, np.empty_like(right)
        blocks = [*zip(_blocks(right.shape[-1]), self.inverses, strict=True)]
        for (start, end), inverse in reversed(blocks):
            after = found[..., end:] @ _turned(unit[..., start:end, end:])
            found[..., start:end] = (right[..., start:end] - after) @ _turned(inverse)
        found /= self.diagonal[..., None, :]
        for (start, end), inverse in blocks:
            before = found[..., :start] @ unit[..., :start, start:end]
            found[..., start:end] = (found[..., start:end] - before) @ inverse
        return found


def _blocks(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + AT_ONCE, size)) for start in range(0, size, AT_ONCE)]


def _turned(matrix: Float64Array) -> Float64Array:
    return np.swapaxes(matrix, -1, -2)
