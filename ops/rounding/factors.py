"""Factors U D U^T of symmetric positive definite matrices, and solutions of their equations.

NumPy's own functions reach a quarter of the speed of its products. Here large matrices are processed in
blocks, the last one first, so that nearly all the work is products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ops.array_types import Float32Array, Float64Array, FloatArray

AT_ONCE = 96
"""Rows and columns of a block; up to this size NumPy factorizes a matrix at once."""


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
            block, diagonal[..., start:end] = unit_upper(rest[..., start:, :])
            inverses.insert(0, np.asarray(np.linalg.inv(block), np.float64))
            above = rest[..., :start, :] @ _turned(inverses[0])
            unit[..., :start, start:end] = above / diagonal[..., None, start:end]
            unit[..., start:end, start:end] = block
        return cls(unit, diagonal, inverses)

    def solve(self, right: FloatArray) -> FloatArray:
        """Solve matrix X = right [..., K, N], in the precision of ``right``."""
        unit, kind = self.unit_as(right.dtype), right.dtype
        solution = np.empty_like(right)
        blocks = [*zip(_blocks(right.shape[-2]), self.inverses, strict=True)]
        for (start, end), inverse in reversed(blocks):
            after = unit[..., start:end, end:] @ solution[..., end:, :]
            solution[..., start:end, :] = inverse.astype(kind) @ (right[..., start:end, :] - after)
        solution /= self.diagonal[..., None].astype(kind)
        for (start, end), inverse in blocks:
            before = _turned(unit[..., :start, start:end]) @ solution[..., :start, :]
            solution[..., start:end, :] = _turned(inverse).astype(kind) @ (
                solution[..., start:end, :] - before
            )
        return solution

    def unit_as(self, kind: np.dtype[Any]) -> FloatArray:
        """Return U in float32 or float64."""
        return self.unit if kind == np.float64 else self._short

    @cached_property
    def _short(self) -> Float32Array:
        return self.unit.astype(np.float32)


def _blocks(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + AT_ONCE, size)) for start in range(0, size, AT_ONCE)]


def _turned(matrix: FloatArray) -> FloatArray:
    return np.swapaxes(matrix, -1, -2)
