"""The SQNR of outputs on samples, and what a summary says of others by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Pairs = Sequence[tuple[np.ndarray, np.ndarray]]
"""What the float model makes of each sample, and what another model does."""


def decibels(pairs: Pairs) -> float:
    """Return the ratio of signal to error in dB, pooled over samples."""
    error = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / error))


def expected(pairs: Pairs) -> float:
    """Return the ratio that samples let expect of others: half the variance of its logarithm is less."""
    errors = [np.square(a - b).sum() for a, b in pairs]
    variance = np.expm1(min(np.var(np.log(errors), ddof=1), np.log(1 + len(errors)))) / len(errors)
    return decibels(pairs) - 5 / np.log(10) * float(variance)
