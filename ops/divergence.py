"""Divergence of the token probabilities of two sets of logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array

_NUMBERS = 1 << 20
"""Logits to process at a time: a vocabulary has 150,000, and each takes some copies in float64."""


def log_softmax(logits: NDArray[np.floating]) -> Float64Array:
    """Return the log-probabilities of logits [..., classes], along the last axis."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def divergence(baseline: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Return the Kullback-Leibler divergence of other logits from those of a baseline, in nats.

    Both are [..., classes] with one shape, of any floating type. The divergences of all rows are summed. NaN
    for logits that are not finite, except for -inf in both. ValueError if the shapes differ.
    """
    if baseline.shape != other.shape:
        raise ValueError(
            f"shapes differ: {list(baseline.shape)} in the baseline, {list(other.shape)} in the other"
        )
    classes = baseline.shape[-1]
    x, y = baseline.reshape(-1, classes), other.reshape(-1, classes)
    rows, total = max(1, _NUMBERS // max(classes, 1)), 0.0
    with np.errstate(all="ignore"):
        for first in range(0, len(x) if classes else 0, rows):
            p, q = (log_softmax(part[first : first + rows]) for part in (x, y))
            shares = np.exp(p)
            total += float(np.where(shares > 0, shares * (p - q), np.where(np.isnan(p), np.nan, 0)).sum())
    return max(total, 0.0) if np.isfinite(total) else float("nan")
