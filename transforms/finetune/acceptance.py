"""Whether a model is better than another on data that nobody has seen, judged by samples that were held out.

A difference on a few samples may be luck, and a mean over outputs hides one that became worse. So three
things have to hold:

* no output has a larger error on the samples that were held out, all of them taken together;
* nor on all samples: those that weights were fitted to do not tell how much is won, but they tell a loss;
* each output became better by more than the standard error of its mean over samples, unless nothing about it
  changed. Models are compared sample by sample, so that easy and hard samples do not count as scatter.

One standard error is the bar for the first model that is tried, which one that is as good as before passes
once in six times. It rises for others, so that one of many is not taken by luck more often than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.finetune.output_error import Errors

Mask = NDArray[np.bool_]


def is_significantly_better(
    before: Errors, after: Errors, held: Sequence[bool] | Mask, tried: int = 0
) -> bool:
    """Return whether errors on samples became less, and not by chance.

    ``held`` tells which of the samples were held out, at least one; ``tried``: how many other models were not
    better.
    """
    if not np.isfinite(after.errors).all():
        return False
    if not np.isfinite(before.errors).all():
        return True
    kept = np.asarray(held)
    everything = np.ones_like(kept)
    if any(np.any(_total(after, part) > _total(before, part)) for part in (kept, everything)):
        return False
    changed = [gains for gains in _gains(before, after).T if gains.any()]
    return bool(changed) and all(_is_sure(gains, kept, _standard_errors(tried)) for gains in changed)


def _is_sure(gains: Float64Array, held: Mask, standard_errors: float) -> bool:
    error = _scatter(gains, held) / np.sqrt(held.sum())
    return bool(gains[held].mean() > standard_errors * error)


def _total(errors: Errors, part: Mask) -> Float64Array:
    return np.asarray(errors.of(part).errors.sum(0))


def _gains(before: Errors, after: Errors) -> Float64Array:
    """Return for each sample and output (e - e') / (e + e') of the errors before and after.

    That is from -1 to 1, and 0 if they are equal: no sample has more to say than another.
    """
    sums = before.errors + after.errors
    return np.asarray((before.errors - after.errors) / np.where(sums > 0, sums, 1.0))


def _scatter(gains: Float64Array, held: Mask) -> float:
    """Return the standard deviation of a sample's gain: that of all, or that of those held out if larger.

    It is taken around the means of both parts. Of those held out there may be one alone.
    """
    parts = [gains[part] for part in (held, ~held) if part.any()]
    squares = [float(((part - part.mean()) ** 2).sum()) for part in parts]
    of_all = sum(squares) / max(len(gains) - len(parts), 1)
    return float(np.sqrt(max(of_all, squares[0] / max(len(parts[0]) - 1, 1))))


def _standard_errors(tried: int) -> float:
    """Return the bar: that of one is passed by luck with some probability, which models share."""
    luck = 1 - NormalDist().cdf(1.0)
    return NormalDist().inv_cdf(1 - luck / (tried + 1))
