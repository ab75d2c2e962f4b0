"""The error that rounding makes in a layer, estimated from some rows of its input, without multiplying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array
from ops.channel_sums import channel_sums
from ops.integers import range_scale
from ops.squared_errors import squared_errors
from transforms.plan.quant_spec import QuantSpec
from transforms.scheme.outlier_move import OutlierMove

_SHARES = (1.0, 0.8, 0.64)  # of the full range, for methods that clip

_CLIPPED = 0.7  # of the largest weight: about what one scale of least error for all channels covers

Channels = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Some rows [rows, channels] of what layers multiply."""

    numbers: Float32Array

    @cached_property
    def squares(self) -> Float64Array:
        """The mean square of each channel."""
        return _mean_squares(self.numbers)


Halves = tuple[Rows, Rows]


@dataclass(frozen=True)
class LayerWeights:
    """What of a weight [channels, outputs] the errors depend on: its numbers, the grid, norms of rows.

    ``largest``: magnitudes of each output, and ``peaks`` the channels that have them.
    """

    numbers: Float32Array
    grid: QuantSpec
    norms: Float64Array
    largest: Float32Array
    peaks: Channels

    @classmethod
    def of(cls, rows: Float32Array, grid: QuantSpec) -> LayerWeights:
        """Measure a weight whose channels are on the first axis."""
        norms = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        peaks = np.abs(rows).argmax(0)
        return cls(rows, grid, norms, np.abs(np.take_along_axis(rows, peaks[None], 0)[0]), peaks)

    def error(self, squares: Float64Array, factors: Float64Array, own: Channels) -> float:
        """Return the mean squared error of what the layer makes that rounding the weight causes.

        ``squares``: mean squares of the channels before they are divided by ``factors``, which are 1 or more;
        ``own`` channels stay out of it. An error that is spread evenly over a step s has the mean square
        s^2 / 12.
        """
        largest = self._largest_without(own)
        raised = np.flatnonzero(factors != 1)
        scaled = np.abs(self.numbers[raised]) * factors[raised, None].astype(np.float32)
        largest = np.maximum(largest, scaled.max(0, initial=0)).astype(np.float64)
        if self.grid.axis is None:
            largest = np.full_like(largest, _CLIPPED * largest.max())
        steps = largest / self.grid.format.highest
        kept = squares / factors**2
        kept[own] = 0
        return float(np.square(steps).sum() / 12 * kept.sum())

    def _largest_without(self, own: Channels) -> Float32Array:
        """Return the largest magnitude of each output, some channels left out."""
        if not len(own):
            return self.largest
        other = np.isin(self.peaks, own)
        largest = self.largest.copy()
        largest[other] = np.abs(np.delete(self.numbers[:, other], own, 0)).max(0, initial=0)
        return largest


def rounding_error(
    seen: Float32Array, held_out: Float32Array, norms: Float64Array, grid: QuantSpec, *, clips: bool
) -> float:
    """Return the mean squared error of what layers make that rounding their input causes.

    ``seen`` gives the range, ``held_out`` the error; ``norms``: of the weights' rows.
    """
    shares = np.array(_SHARES if clips else _SHARES[:1])
    low, high = shares * float(seen.min(initial=0)), shares * float(seen.max(initial=0))
    scales, zeros = range_scale(low, high, grid.format, symmetric=grid.symmetric)
    errors = squared_errors(seen.reshape(1, 1, -1), scales[:, None], zeros[:, None], grid.format)
    best, channels = [int(errors.argmin())], held_out.shape[1]
    scale, zero = (np.repeat(of[best], channels)[None] for of in (scales, zeros))
    squares = squared_errors(held_out[..., None], scale, zero, grid.format)[0] / max(1, len(held_out))
    return float(squares @ norms)


def _mean_squares(x: Float32Array) -> Float64Array:
    return channel_sums(x, 1)[1] / max(1, len(x))


def total_error(
    move: OutlierMove,
    rows: Halves,
    weights: Sequence[LayerWeights],
    grid: QuantSpec,
    *,
    clips: bool,
) -> float:
    """Return the error of layers with a move of outliers; those with products of their own stay float.

    ``rows``: those that give the range, and those that are held out.
    """
    factors, own = np.ones(rows[0].numbers.shape[1]), np.array(move.own, np.int64)
    factors[list(move.exponents)] = [2.0**exponent for exponent in move.exponents.values()]
    rounded = sum(weight.error(rows[1].squares, factors, own) for weight in weights)
    norms = np.sum([weight.norms for weight in weights], axis=0) * factors**2
    divisors = factors.astype(np.float32)
    seen, held_out = (np.divide(half.numbers, divisors, dtype=np.float32) for half in rows)
    seen[:, own] = held_out[:, own] = 0  # zero is exact, and in every range
    return rounding_error(seen, held_out, norms, grid, clips=clips) + rounded
