"""The error that rounding makes in a layer, estimated from some rows of its input, without multiplying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array
from ops.integers import range_scale
from transforms.plan.quant_spec import QuantSpec

_SHARES = (1.0, 0.8, 0.64)  # of the full range, for methods that clip

_CLIPPED = 0.7  # of the largest weight: about what one scale of least error for all channels covers

Channels = NDArray[np.int64]
Halves = tuple[Float32Array, Float32Array]


@dataclass(frozen=True)
class LayerWeights:
    """What of a weight [channels, outputs] the errors depend on: magnitudes, the grid, norms of rows."""

    magnitudes: Float32Array
    grid: QuantSpec
    norms: Float64Array

    @classmethod
    def of(cls, rows: Float32Array, grid: QuantSpec) -> LayerWeights:
        """Measure a weight whose channels are on the first axis."""
        return cls(np.abs(rows), grid, np.square(rows, dtype=np.float64).sum(1))

    def error(self, squares: Float64Array, factors: Float64Array, kept: Channels) -> float:
        """Return the mean squared error of what the layer makes that rounding the weight causes.

        ``squares``: mean squares of the channels before they are divided by ``factors``. An error that is
        spread evenly over a step s has the mean square s^2 / 12.
        """
        largest = (self.magnitudes[kept] * factors[kept, None].astype(np.float32)).max(0, initial=0)
        if self.grid.axis is None:
            largest = np.full_like(largest, _CLIPPED * largest.max(initial=0))
        steps = largest.astype(np.float64) / self.grid.format.highest
        return float(np.square(steps).sum() / 12 * (squares[kept] / factors[kept] ** 2).sum())


def rounding_error(
    seen: Float32Array, held_out: Float32Array, norms: Float64Array, grid: QuantSpec, *, clips: bool
) -> float:
    """Return the mean squared error of what layers make that rounding their input causes.

    ``seen`` gives the range, ``held_out`` the error; ``norms``: of the weights' rows.
    """
    low, high = float(seen.min(initial=0)), float(seen.max(initial=0))
    grids = [
        range_scale(share * low, share * high, grid.format, symmetric=grid.symmetric)
        for share in (_SHARES if clips else _SHARES[:1])
    ]
    best = min(grids, key=lambda pair: float(_squares(seen, grid, *pair).sum())) if clips else grids[0]
    return float(_squares(held_out, grid, *best) @ norms)


def _squares(
    x: Float32Array, grid: QuantSpec, scale: Float32Array, zero: NDArray[np.generic]
) -> Float64Array:
    """Return the mean squared error of rounding, by channel."""
    step, middle = np.float32(scale), np.float32(zero.astype(np.int64))
    lowest, highest = np.float32(grid.format.lowest), np.float32(grid.format.highest)
    rounded = x / step
    np.rint(rounded, out=rounded)
    np.clip(rounded, lowest - middle, highest - middle, out=rounded)
    rounded *= step
    rounded -= x
    return np.einsum("ij,ij->j", rounded, rounded, dtype=np.float64) / max(1, len(x))


def total_error(
    kept: Channels,
    factors: Float64Array,
    rows: Halves,
    weights: Sequence[LayerWeights],
    grid: QuantSpec,
    *,
    clips: bool,
) -> float:
    """Return the error of layers of which some channels are divided by factors, and the others stay float.

    ``rows``: those that give the range, and those that are held out.
    """
    squares = np.square(rows[1], dtype=np.float64).mean(0)
    norms = sum((weight.norms for weight in weights), np.zeros(len(factors))) * factors**2
    seen, held_out = (half[:, kept] / factors[kept].astype(np.float32) for half in rows)
    rounding = rounding_error(seen, held_out, norms[kept], grid, clips=clips)
    return rounding + sum(weight.error(squares, factors, kept) for weight in weights)
