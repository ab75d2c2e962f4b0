"""Test whether some layers carry half of an error, beyond what the samples at hand show by chance."""

from __future__ import annotations

import numpy as np

from ops.array_types import Float64Array

HALF = 0.5
"""The share of the squared error: 3 dB."""


def carries_half(whole: Float64Array, left: Float64Array, those: Float64Array) -> bool:
    """Return whether layers in float remove half of the error, and more than the others in float would.

    Squared errors of one output, [samples]: ``whole`` of the quantized model, ``left`` with the layers in
    float, ``those`` with all others in float. The test must hold for the sum over samples, in which one of
    probabilities may hold nearly all, and for the mean of their shares, each by more than its standard error
    (W. G. Cochran, Sampling Techniques, 1977, 2.11 and 6.4); a single sample has no standard error.
    """
    seen = whole > 0
    if not seen.any():
        return True
    kept, rest = left[seen] / whole[seen], those[seen] / whole[seen]
    weights = whole[seen] / whole[seen].sum(), np.full(kept.size, 1 / kept.size)
    return all(_at_most(HALF, kept, w) and _at_most(0.0, kept - rest, w) for w in weights)


def _at_most(limit: float, values: Float64Array, weights: Float64Array) -> bool:
    """Return whether the weighted mean of values plus its standard error is within a limit."""
    mean, count = float(weights @ values), values.size
    spread = np.sqrt(count / max(count - 1, 1) * np.square(weights * (values - mean)).sum())
    return bool(mean + spread <= limit)
