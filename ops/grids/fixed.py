"""Grids to which a layer's weights are rounded: numbers of a format with fixed scales or exponents.

Solvers move weights on a grid, so the scale of integers and the exponent of a block must not depend on the
weights themselves. Every format is then such a grid: a scale times integers within limits, or a scale times
the numbers of a small floating type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array, FloatArray
from ops.reference import Element
from ops.subnormals import keeps_subnormals

_FIELDS: dict[np.dtype[Any], tuple[int, int, Any]] = {
    np.dtype(np.float32): (23, 127, np.int32),
    np.dtype(np.float64): (52, 1023, np.int64),
}


@dataclass(frozen=True)
class Grid:
    """The numbers scale * u for integers u, or numbers u of a floating ``element``, within limits.

    ``scale`` [..., N, K] is positive; ``lowest`` and ``highest`` [..., N, K] are in units of it. ``element``
    is None for integers; of a floating one only the mantissa bits and the bias are used.
    """

    scale: Float64Array
    lowest: Float64Array
    highest: Float64Array
    element: Element | None = None

    @keeps_subnormals
    def round(self, weights: FloatArray) -> Float64Array:
        """Round weights [..., N, K] to the nearest numbers of the grid, halves to even."""
        u = weights / self.scale
        u = np.rint(u, out=u) if self.element is None else round_floating(u, self.element)
        np.maximum(u, self.lowest, out=u)
        np.minimum(u, self.highest, out=u)
        u *= self.scale
        return u

    @keeps_subnormals
    def neighbours(self, weights: FloatArray) -> tuple[Float64Array, Float64Array]:
        """Return the two numbers of the grid around each weight [..., N, K], the lower one first.

        A weight on the grid is the neighbour closer to zero, unless it is at the end. The two are equal if
        the limits allow only one number.
        """
        u = np.clip(weights / self.scale, self.lowest, self.highest)
        step = self._steps(u)
        near = np.floor(np.abs(u) / step) * step
        below = np.minimum(np.where(u < 0, -near - step, near), self.highest - step)
        above = np.maximum(np.where(u < 0, -near, near + step), self.lowest + step)
        below, above = (np.clip(side, self.lowest, self.highest) * self.scale for side in (below, above))
        return below, above

    @keeps_subnormals
    def step(self, weights: FloatArray) -> Float64Array:
        """Return the distance between the neighbours of each weight [..., N, K]."""
        return self._steps(np.clip(weights / self.scale, self.lowest, self.highest)) * self.scale

    def rows(self, part: slice) -> Grid:
        """Return the grid of some of the outputs."""
        scale, lowest, highest = (side[..., part, :] for side in (self.scale, self.lowest, self.highest))
        return Grid(scale, lowest, highest, self.element)

    @cached_property
    def columns(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Scale and limits with the inputs first, so that the numbers of one input are contiguous."""
        shape = np.broadcast_shapes(self.scale.shape, self.lowest.shape, self.highest.shape)
        scale, lowest, highest = (
            np.ascontiguousarray(np.moveaxis(np.broadcast_to(part, shape), -1, 0))
            for part in (self.scale, self.lowest, self.highest)
        )
        return scale, lowest, highest

    def _steps(self, u: Float64Array) -> Float64Array:
        if self.element is None:
            return np.ones_like(u)
        least = 1 - self.element.bias
        exponents = np.where(u == 0, least, np.maximum(np.frexp(u)[1] - 1, least))
        return np.ldexp(1.0, exponents - self.element.mantissa_bits)


@keeps_subnormals
def round_floating(u: NDArray[Any], element: Element, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Round float32 or float64 numbers, halves to even, to the mantissa bits of a floating type.

    Subnormal numbers of the type have its least exponent; nothing saturates. Adding and subtracting 1.5
    times a power of two keeps the desired number of bits.
    """
    bits, bias, integer = _FIELDS[u.dtype]
    exponents = u.view(integer) & integer(2 * bias + 1 << bits)
    np.maximum(exponents, integer(1 - element.bias + bias << bits), out=exponents)
    exponents += integer((bits - element.mantissa_bits << bits) + (1 << bits - 1))
    magic = exponents.view(u.dtype)
    rounded = np.add(u, magic, out=out)
    rounded -= magic
    return rounded
