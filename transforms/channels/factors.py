"""Powers of two for the channels of a tensor or a weight, by their ranges: the rules of the moves.

Each rule returns exponents [channels] by which numbers are divided.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import Float64Array
from transforms.channels.per_channel import Exponents, Ranges
from transforms.scheme.outlier_move import OutlierMove

_MOST_SMOOTHED = 10
"""Exponent between channels: what is smaller than a thousandth of others has no part in their sum."""

_HEADROOM, _LARGEST = 1, 7
"""Powers of two that no other channel gets nearer to the largest; a constant of 8 bits holds 7 of them."""

_UNEVEN = 64  # largest over smallest range: formats with 7 bits for magnitudes keep one bit of the smallest
_OUTLIER = 16  # over the median range
_LOWERED = 8  # new range of outliers over the median range: lower costs the other operand more


def lowered(ranges: Ranges, limit: float) -> Exponents:
    """Bring channels above a limit down to it (SmoothQuant, arXiv 2211.10438, equation 4, for a = 1)."""
    return _rounded(np.log2(np.maximum(ranges / limit, 1)))


def smoothed(ranges: Ranges, of_weights: Ranges, share: float) -> Exponents:
    """Return the exponents of s_j = max|X_j|^a / max|W_j|^(1-a), of which the least is 0 (equation 4).

    ``ranges`` max|X_j|; ``of_weights`` max|W_j|; ``share`` a. Channels that are 0 throughout, or tiny, stay.
    """
    counted = (ranges > 0) & (of_weights > 0)
    factors = share * np.log2(ranges[counted]) - (1 - share) * np.log2(of_weights[counted])
    highest = factors.max(initial=-np.inf)
    least = max(factors.min(initial=highest), highest - _MOST_SMOOTHED)
    exponents = np.zeros(len(ranges), np.int64)
    exponents[counted] = _rounded(np.maximum(factors - least, 0))
    return exponents


def raised(ranges: Ranges, share: float) -> Exponents:
    """Bring channels a share of the way up to the largest, less some headroom."""
    ratios = np.log2(ranges.max() / np.maximum(ranges, ranges.max() * 2.0**-10))
    return -np.clip(np.floor(share * ratios - _HEADROOM), 0, _LARGEST).astype(np.int64)


def evened_out(ranges: Ranges) -> Exponents:
    """Bring all ranges close to their geometric mean if they are uneven."""
    logarithms = np.log2(ranges)
    return _rounded(logarithms - logarithms.mean()) * (ranges.max() >= _UNEVEN * ranges.min())


def without_outliers(ranges: Ranges) -> Exponents:
    """Bring outlying ranges close to a multiple of the median."""
    median = np.median(ranges)
    return _rounded(np.log2(ranges / (_LOWERED * median))) * (ranges > _OUTLIER * median)


def as_move(exponents: Exponents) -> OutlierMove:
    """Return the move that divides channels by powers of two, as a scheme records it."""
    return OutlierMove({int(i): int(exponents[i]) for i in np.flatnonzero(exponents)})


def _rounded(exponents: Float64Array) -> Exponents:
    return np.rint(exponents).astype(np.int64)
