"""Estimate the SQNR on other data from few samples, with an error of which two usually cover other data.

Few samples say little of their own scatter: if one of a hundred has most of the error, eight look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, hypot, log1p, sqrt

import numpy as np

from ops.metrics import decibels
from transforms.judge.errors import Errors, error_of_decibels

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""Quantiles at 97.5 % of Student's distribution, from 1 degree of freedom on (Biometrika 6, 1908)."""

_LEAST = 1e-3
"""Least error of a sample as a share of the largest one, so that its logarithm is bounded."""

_PER_NEPER = 10 / np.log(10)


def figure_of(errors: Errors, folds: Sequence[int]) -> tuple[float, float]:
    """Return the relative squared error of outputs expected on other data, and the error of that in dB.

    ``folds``: the fold of each sample. Two variances are added: that which the samples show, by the
    jackknife, and that which they do not show, by a log-normal distribution of the same width. The jackknife
    over folds, whose samples share a model, is used instead if it is larger. Student's distribution accounts
    for the few samples: with tails as heavy as those of errors, of a kurtosis near 5, the estimate is as
    uncertain as that of half as many normal values; few samples have two degrees of freedom, if there are
    three. The logarithm of a mean of few values is less than that of all by half its variance, which is
    added. The error is 0 for one sample.
    """
    rows, groups = np.arange(len(errors.errors)), np.asarray(folds)
    if len(rows) < 2 or not 0 < errors.relative < np.inf:
        return errors.relative, 0.0
    variance = _of_mean(errors)
    shown = hypot(_jackknife(errors, rows), _PER_NEPER * sqrt(variance))
    freedom = max(len(rows) // 2 - 1, min(len(rows) - 1, 2))
    student = _STUDENT[min(freedom, len(_STUDENT)) - 1]
    error = max(shown, _jackknife(errors, groups)) * student / 2
    return errors.relative * exp(variance / 2), error


def _jackknife(errors: Errors, groups: np.ndarray) -> float:
    left_out = [errors.of_samples(groups != group).relative for group in np.unique(groups)]
    return error_of_decibels(decibels(errors.relative), list(map(decibels, left_out)))


def _of_mean(errors: Errors) -> float:
    """Return the variance of the logarithm of the mean error, for log-normal errors of samples; 1 at most.

    It is 1 if one sample has all of the error (J. Aitchison and J. A. C. Brown, The Lognormal Distribution,
    1957, chapter 2).
    """
    with np.errstate(all="ignore"):
        shares = np.nan_to_num(errors.errors / errors.signal.sum(0))[:, : errors.count].mean(1)
    spread = np.var(np.log(np.maximum(shares, _LEAST * shares.max())), ddof=1)
    return expm1(min(float(spread), log1p(len(shares)))) / len(shares)
