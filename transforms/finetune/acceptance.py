"""Acceptance test: is a model better than another on unseen data, by the evidence of held-out samples?

A difference on a few samples may be chance, and a mean over outputs hides one that became worse. So three
conditions have to hold.

* No output became worse by more than scatter explains, in all or in the mean over samples; neither on
  held-out samples nor on all: those that weights were fitted to can prove a loss, if no gain.
* The outputs that changed improved, in the mean over them, by more than the standard error of that mean over
  held-out samples. Models are compared sample by sample, so that easy and hard samples do not add to the
  scatter.
* So did the errors on held-out samples, and on all, taken together. In both means an output counts the more,
  the less samples scatter in it.

The threshold for the first model is one standard error, which a model without a gain passes once in six
times, and 1.6 for tuned weights where nothing else can tell, once in twenty. It rises for later models, so
that one of many passes by chance no more often than that. That of a loss is one standard error, and rises
with the number of outputs: of many that stay as they are, one looks worse by chance no more often than a
single one.

With fewer than six held-out samples their scatter says little: no output may have a larger error. With fewer
than three, every output that changed has to be sure of its gain.

Where other models could hold out more samples, a gain has to be clear to do without them, by two standard
errors, of fewer than six samples by three. Their scatter is uncertain itself: in Student's t of four samples
3.2 are as rare as two of many, and the scatter of one or two is that of samples that weights were fitted to,
which is too small. Looks that ask for so much add little to the luck of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.finetune.options import FEW
from transforms.finetune.output_error import Errors

Mask = NDArray[np.bool_]

_LEAST_SCATTER = 1e-3
"""Of gains, which are at most 1: an output that scatters less counts no more for that."""

_SEVERAL = 3
"""Held-out samples, from which on outputs are sure of their gain together."""

_WORST = 1e300
"""An error that no model has: sums of it are finite."""

_MOST = 20.0
"""dB that a single sample may gain."""

_DOUBT = 0.5
"""Standard errors that a loss may have by chance."""

OPEN = 1.645
"""Standard errors that tuned weights have to gain where nothing else can tell.

Of 400 tuned models of 66 small networks that passed with one standard error 11 lost 0.1 dB or more on inputs
that were not seen; with this, and noise that counts more (judged_samples), 4 do, and all gain 4 percent less.
"""

ONE = 1.0
"""Standard errors of a loss, and of a gain beside which more has to be shown."""


def clear_of(held: Mask) -> float:
    """Return the standard errors of a gain on held-out samples where other models could tell more."""
    return 3.0 if held.sum() < FEW else 2.0


def is_significantly_better(
    before: Errors, after: Errors, held: Sequence[bool] | Mask, tried: int = 0, least: float = ONE
) -> bool:
    """Return whether the improvement of the errors on samples is statistically significant.

    ``held`` marks the held-out samples, at least one; ``tried``: how many models were rejected before;
    ``least``: standard errors that the first has to gain.
    """
    if not np.isfinite(after.errors).all():
        return False
    if not np.isfinite(before.errors).all():
        return True
    kept = np.asarray(held)
    if len(harmed(before, after, kept)):
        return False
    if kept.sum() < FEW:
        return is_sure(before, after, kept, tried, least)
    gains = _gains(before, after)
    if not gains.any():
        return False
    totals = [_decibels(before, after, part) for part in (kept, np.ones_like(kept))]
    if any(np.average(total, weights=_precision(gains, kept)) < 0 for total in totals):
        return False
    return _is_sure(_together(gains, kept), kept, _standard_errors(tried, least))


def is_sure(before: Errors, after: Errors, held: Mask, tried: int = 0, least: float = ONE) -> bool:
    """Return whether outputs that changed are sure of their gain: each, or of several samples together."""
    gains = _gains(before, after)
    changed = [one for one in gains.T if one.any()]
    if held.sum() >= _SEVERAL and changed:
        changed = [_together(gains, held)]
    return bool(changed) and all(_is_sure(one, held, _standard_errors(tried, least)) for one in changed)


def harmed(before: Errors, after: Errors, held: Mask) -> NDArray[np.intp]:
    """Return the outputs that became worse by more than scatter explains, the worst first.

    Of fewer than six held-out samples those count that became worse at all, and always those whose errors are
    not finite.
    """
    finite = np.isfinite(before.errors).all(0) & np.isfinite(after.errors).all(0)
    gains = np.where(finite, np.nan_to_num(_gains(before, after), nan=-1.0), -1.0)
    saved = np.where(finite, np.nan_to_num(_saved(before, after)), -1.0)
    threshold = _standard_errors(gains.any(0).sum() - 1, ONE) if gains.any() else ONE
    lost = np.array(
        [
            any(_is_lost(values, held, threshold) for values in columns)
            for columns in zip(gains.T, saved.T, strict=True)
        ]
    )
    if held.sum() < FEW:
        for part in (held, np.ones_like(held)):
            lost |= ~(_total(after, part) <= _total(before, part))
    worse = np.flatnonzero(lost)
    return np.asarray(worse[np.argsort(gains.mean(0)[worse], kind="stable")])


def gain(before: Errors, after: Errors, part: Mask) -> float:
    """Return the mean over outputs of how much their errors on a part of the samples fell, in dB."""
    return float(_decibels(before, after, part).mean())


def gains_of_outputs(before: Errors, after: Errors) -> Float64Array:
    """Return how much the error of each output on all samples fell, in dB; -inf if it is not finite."""
    every = np.ones(len(before.errors), np.bool_)
    return np.nan_to_num(_decibels(before, after, every), nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def loses(before: Errors, after: Errors, part: Mask) -> bool:
    """Return whether outputs lose more on a part of the samples than chance explains, in the mean over them.

    Their scatter is that of as many samples as have a share in the errors: of probabilities, a few.
    """
    ends = np.finfo(np.float64).tiny, _WORST  # an infinite error has all of the shares
    first, second = (np.clip(one.of(part).errors, *ends) for one in (before, after))
    shares = (first + second) / (first + second).max(0)
    samples = shares.sum(0) ** 2 / np.square(shares).sum(0)
    with np.errstate(divide="ignore"):
        each = np.clip(10 * np.log10(first / second), -_MOST, _MOST)
    scatter = each.std(0, ddof=min(1, len(each) - 1))
    return gain(before, after, part) < -_DOUBT * float((scatter / np.sqrt(samples)).mean())


def gains_nothing(before: Errors, after: Errors, part: Mask) -> bool:
    """Return whether the error of no output on a part of the samples fell."""
    return not (_decibels(before, after, part) > 0).any()


def _decibels(before: Errors, after: Errors, part: Mask) -> Float64Array:
    """Return by how much the error of each output on a part of the samples, taken together, fell."""
    first, second = _total(before, part), _total(after, part)
    tiny = np.finfo(np.float64).tiny
    same = first == second
    with np.errstate(over="ignore", divide="ignore"):  # of errors that are not finite: no end of a gain
        ratios = np.maximum(first, tiny) / np.where(same, 1.0, np.maximum(second, tiny))
        return np.asarray(10 * np.log10(np.where(same, 1.0, ratios)))


def _is_lost(values: Float64Array, held: Mask, standard_errors: float) -> bool:
    """Return whether what samples gain is less than 0 in the mean of held-out ones, or of all."""
    scatter = _scatter(values, held)
    means = ((values[part].mean(), part.sum()) for part in (held, np.ones_like(held)))
    return any(mean < -standard_errors * scatter / np.sqrt(count) for mean, count in means)


def _together(gains: Float64Array, held: Mask) -> Float64Array:
    """Return the mean over the outputs that changed, in which one counts the more, the less it scatters."""
    return np.asarray(np.average(gains, 1, _precision(gains, held)))


def _precision(gains: Float64Array, held: Mask) -> Float64Array:
    found = [1 / max(_scatter(one, held), _LEAST_SCATTER) ** 2 if one.any() else 0.0 for one in gains.T]
    return np.asarray(found)


def _is_sure(gains: Float64Array, held: Mask, standard_errors: float) -> bool:
    error = _scatter(gains, held) / np.sqrt(held.sum())
    return bool(gains[held].mean() > standard_errors * error)


def _total(errors: Errors, part: Mask) -> Float64Array:
    return np.asarray(errors.of(part).errors.sum(0))


def _gains(before: Errors, after: Errors) -> Float64Array:
    """Return for each sample and output (e - e') / (e + e') of the errors before and after.

    That is from -1 to 1, and 0 if they are equal: all samples have equal influence. Between an infinite error
    and another, it is one of the ends.
    """
    sums, saved = before.errors + after.errors, _saved(before, after)
    gains = np.sign(saved)
    np.divide(saved, np.where(sums > 0, sums, 1.0), out=gains, where=np.isfinite(sums))
    return gains


def _saved(before: Errors, after: Errors) -> Float64Array:
    """Return by how much errors are less; 0 where they are equal, be they infinite."""
    saved = np.zeros_like(before.errors)
    return np.subtract(before.errors, after.errors, out=saved, where=before.errors != after.errors)


def _scatter(gains: Float64Array, held: Mask) -> float:
    """Return the standard deviation of a sample's gain: of all samples, or of the held-out ones if larger.

    It is taken around the means of both parts. There may be a single held-out sample.
    """
    parts = [gains[part] for part in (held, ~held) if part.any()]
    squares = [float(((part - part.mean()) ** 2).sum()) for part in parts]
    of_all = sum(squares) / max(len(gains) - len(parts), 1)
    return float(np.sqrt(max(of_all, squares[0] / max(len(parts[0]) - 1, 1))))


def _standard_errors(tried: int, least: float) -> float:
    """Return the threshold, at which all models together pass by chance as often as one at ``least``."""
    luck = 1 - NormalDist().cdf(least)
    return NormalDist().inv_cdf(1 - luck / (tried + 1))
