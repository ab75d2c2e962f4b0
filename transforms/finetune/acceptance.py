"""Acceptance test: is a model better than another on unseen data, by the evidence of held-out samples?

A difference on a few samples may be chance, and a mean over outputs hides one that became worse. So three
conditions have to hold:

* no output has a larger error on the held-out samples, taken together;
* nor on all samples: those that weights were fitted to cannot prove a gain, but they can prove a loss;
* each output improved by more than the standard error of its mean over samples, unless it did not change.
  Models are compared sample by sample, so that easy and hard samples do not add to the scatter.

The threshold for the first model is one standard error, which a model without a gain passes once in six
times. It rises for later ones, so that one of many passes by chance no more often than that.
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
    """Return whether the improvement of the errors on samples is statistically significant.

    ``held`` marks the held-out samples, at least one; ``tried``: how many models were rejected before.
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

    That is from -1 to 1, and 0 if they are equal: all samples have equal influence.
    """
    sums = before.errors + after.errors
    return np.asarray((before.errors - after.errors) / np.where(sums > 0, sums, 1.0))


def _scatter(gains: Float64Array, held: Mask) -> float:
    """Return the standard deviation of a sample's gain: of all samples, or of the held-out ones if larger.

    It is taken around the means of both parts. There may be a single held-out sample.
    """
    parts = [gains[part] for part in (held, ~held) if part.any()]
    squares = [float(((part - part.mean()) ** 2).sum()) for part in parts]
    of_all = sum(squares) / max(len(gains) - len(parts), 1)
    return float(np.sqrt(max(of_all, squares[0] / max(len(parts[0]) - 1, 1))))


def _standard_errors(tried: int) -> float:
    """Return the threshold, at which all models together pass by chance as often as one model at 1."""
    luck = 1 - NormalDist().cdf(1.0)
    return NormalDist().inv_cdf(1 - luck / (tried + 1))
