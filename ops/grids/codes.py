"""The integers of a recognized grid in the form that kernels store: from 0, with a zero point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float32Array
from ops.grids.recognise import FoundGrid


@dataclass(frozen=True)
class GridCodes:
    """Integers with ``bits`` bits, number / step + zero; ``step`` and ``zero`` are arrays as in the grid.

    A step is negative if the integers are -7 to 8: their signs change, so that the middle can be zero.
    """

    grid: FoundGrid
    bits: int
    step: Float32Array
    zero: NDArray[np.int16]

    @classmethod
    def of(cls, grid: FoundGrid, least_bits: int = 2) -> GridCodes:
        """Return the codes of a grid in ``least_bits`` or more, with the middle as zero wherever possible."""
        bits = max(least_bits, grid.kind.bits)
        if grid.minimum is not None or grid.kind.element:
            return cls(grid, bits, grid.step, np.zeros(grid.step.shape, np.int16))
        half, ends = np.int16(1 << (bits - 1)), (grid.least, grid.most)
        fits = (ends[0] >= -half) & (ends[1] < half)
        turns = (ends[1] <= half) & (ends[0] > -half)
        is_turned = turns & ~fits
        zero = np.where(fits | turns, half, -np.minimum(grid.least, 0)).astype(np.int16)
        return cls(grid, bits, np.where(is_turned, -grid.step, grid.step), zero)

    @property
    def middle(self) -> int:
        """The zero of signed integers."""
        return 1 << (self.bits - 1)

    @property
    def is_signed(self) -> bool:
        """Whether the middle is zero everywhere."""
        return self.grid.minimum is None and bool((self.zero == self.middle).all())

    @property
    def float_zeros(self) -> Float32Array:
        """Zero points for which (code - zero) * step approximates the minimum of a grid."""
        assert self.grid.minimum is not None, "else zeros are integers"
        return (-self.grid.minimum.astype(np.float64) / self.step).astype(np.float32)

    def of_values(self, values: Float32Array) -> AnyArray:
        """Return the codes of a weight on the grid, as uint8, or its 8-bit floats."""
        codes = self.grid.numbers(values)
        if self.grid.kind.element:
            return codes
        sign = np.sign(self.step).astype(np.int16)
        if (sign < 0).any():
            codes *= self.grid.expanded(sign, values.shape)
        if self.zero.any():
            codes += self.middle if self.is_signed else self.grid.expanded(self.zero, values.shape)
        return codes.astype(np.uint8)
