"""The error of the SQNR that a summary tells: two of it are to hold on other data in 19 of 20 cases.

Few samples say little of their own scatter: where one of a hundred has most of the error, eight are alike as a
rule. So the largest of three estimates counts, with Student's distribution for the few values that it is of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ops.metrics import decibels
from transforms.judge.errors import Errors, error_of_decibels

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""Quantiles at 97.5 % of Student's distribution, from 1 degree of freedom on (Biometrika 6, 1908)."""

_LEAST = 1e-3
"""Of the largest error of a sample, what counts as the least: its logarithm has no scale else."""

_PER_NEPER = 10 / np.log(10)


def error_of_figure(errors: Errors, folds: Sequence[int]) -> float:
    """Return half of what the SQNR of some samples in dB is from that of others at most; 0 of one sample.

    ``folds``: the fold of each sample; those of a fold run through the same model, and tell less than as many
    others, so that folds are the values that are independent. The estimates are the jackknife over samples,
    that over folds, and the standard error of the mean of a log-normal distribution with the variance of the
    samples' errors (J. Aitchison and J. A. C. Brown, The Lognormal Distribution, 1957, section 5.4).
    """
    rows, groups = np.arange(len(errors.errors)), np.asarray(folds)
    independent = min(len(np.unique(groups)), len(rows)) if len(np.unique(groups)) > 1 else len(rows)
    if independent < 2:
        return 0.0
    estimates = _jackknife(errors, rows), _jackknife(errors, groups), _of_log_normal(errors)
    return max(estimates) * _STUDENT[min(independent - 1, len(_STUDENT)) - 1] / 2


def _jackknife(errors: Errors, groups: np.ndarray) -> float:
    left_out = [errors.of_samples(groups != group).relative for group in np.unique(groups)]
    return error_of_decibels(decibels(errors.relative), list(map(decibels, left_out)))


def _of_log_normal(errors: Errors) -> float:
    """Return it in dB; of few samples no more than one of them could make."""
    with np.errstate(all="ignore"):
        shares = np.nan_to_num(errors.errors / errors.signal.sum(0))[:, : errors.count].mean(1)
    if not 0 < shares.max() < np.inf:
        return 0.0
    variance = float(np.var(np.log(np.maximum(shares, _LEAST * shares.max())), ddof=1))
    count = len(shares)
    return float(_PER_NEPER * np.sqrt(np.expm1(min(variance, np.log1p(count))) / count))
