"""The error of a model's outputs, sample by sample, and how much better one setting is than another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.array_types import AnyArray, Feed, Float64Array
from ops.metrics import sums_of_numbers

_WORST = 1e30  # error energy of an output that is not finite
_LEAST = 1e-30  # share of the signal below which an error is none
_VIEW_BIAS = 1.0  # dB by which a gain before the saturation may differ from that of the output
_DRAGGED = 1.0  # dB that the worst output may lose to the others
_MOST = 20.0  # dB that a single sample may gain
_HOPELESS = 3.0  # dB
_NO_CHANCE = 2.0  # standard errors that chance does not explain
_TOGETHER = 2.0  # samples of a half share its ranges: their mean is that much less certain
_FALLEN = 0.5  # dB
_DOUBT = 0.25  # standard errors below zero from which on samples show a loss


def energies(expected: Feed, found: Feed) -> Float64Array:
    """Return the squared error of each array of a sample, [outputs]; 0 of those that were not found."""
    pairs = ((array, found.get(name, array)) for name, array in expected.items())
    return np.array([_energy(*pair) for pair in pairs], np.float64)


def signals(expected: Feed) -> Float64Array:
    """Return the squares of each array of a sample, [outputs]."""
    return energies(expected, {name: np.zeros_like(array) for name, array in expected.items()})


def sizes(expected: Feed) -> Float64Array:
    """Return how many numbers each array of a sample has, [outputs]."""
    return np.array([array.size for array in expected.values()], np.float64)


def _energy(expected: AnyArray, found: AnyArray) -> float:
    if found.shape != expected.shape:
        return _WORST
    error = sums_of_numbers(expected, found).error_energy
    return error if np.isfinite(error) else _WORST


@dataclass(frozen=True)
class Score:
    """Squared errors [samples, arrays] of a setting beside the signal, of the same shape.

    The first ``count`` arrays are the outputs, the others views on what an output saturates or sums up.
    ``sizes``: how many numbers they have, of the same shape. Arrays without signal, or without any error, are
    the same for all settings and do not count.
    """

    errors: Float64Array
    signal: Float64Array
    sizes: Float64Array
    count: int

    @property
    def decibels(self) -> Float64Array:
        """The signal-to-noise ratio of each array, pooled over the samples, in dB; NaN for what is exact."""
        return _decibels(self.signal.sum(0), self.errors.sum(0))

    @property
    def mean(self) -> float:
        """The mean over the outputs, in dB."""
        return _mean(self.decibels[: self.count])

    @property
    def chance(self) -> Float64Array:
        """By how many dB two settings may differ that are as good, for each array: a standard error.

        The mean of n squares of normal errors differs by sqrt(2 / n) of itself from one draw to the next.
        """
        return 20 / np.log(10) / np.sqrt(np.maximum(self.sizes.sum(0), 1))


def _decibels(signal: Float64Array, errors: Float64Array) -> Float64Array:
    with np.errstate(all="ignore"):
        return np.where(errors > _LEAST * signal, 10 * np.log10(signal / errors), np.nan)


def _mean(values: Float64Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else 0.0


@dataclass(frozen=True)
class Gain:
    """By how many dB a setting is better than another: the estimate, and its standard error."""

    decibels: float
    error: float

    @property
    def is_loss(self) -> bool:
        """Whether the samples show a loss."""
        return self.decibels < -_DOUBT * self.error

    def shrunk(self, expected: float, spread: float) -> float:
        """Return what is known of it beside ``expected``, the gain on other models, and its spread there."""
        if not np.isfinite(self.error):
            return expected
        weights = 1 / max(_TOGETHER * self.error, 1e-3) ** 2, 1 / spread**2
        return float((self.decibels * weights[0] + expected * weights[1]) / sum(weights))


def gain(new: Score, old: Score) -> Gain:
    """Return the gain in the mean over outputs, as three estimates together tell it.

    They are the gain of errors pooled over samples, which is what counts and may hang on one sample; the mean
    of the gains of single samples; and both for what outputs saturate. The others may be off by a dB.
    """
    whole, mean = _gains(new, old, slice(new.count))
    estimates, biases = [whole, mean], [0.0, _VIEW_BIAS]
    if new.signal.shape[1] > new.count:
        estimates += _gains(new, old, slice(new.count, None))
        biases += [_VIEW_BIAS, _VIEW_BIAS]
    variances = np.array(
        [max(one.error, 1e-3) ** 2 + off**2 for one, off in zip(estimates, biases, strict=True)]
    )
    total = float((1 / variances).sum())
    return Gain(float([one.decibels for one in estimates] @ (1 / variances)) / total, total**-0.5)


def is_hopeless(start: Score, rival: Score) -> bool:
    """Return whether a setting is so much worse on its first samples that the others need no run.

    Outputs and what they are made of have to show it: two samples of probabilities, or of few numbers, say
    little.
    """
    count = len(start.errors)
    same = Score(rival.errors[:count], rival.signal[:count], rival.sizes[:count], rival.count)
    arrays = [slice(start.count)]
    if start.signal.shape[1] > start.count:
        arrays.append(slice(start.count, None))
    return all(_is_hopeless(start, same, part) for part in arrays)


def _is_hopeless(new: Score, old: Score, arrays: slice) -> bool:
    least = _HOPELESS + _NO_CHANCE * float(new.chance[arrays].mean())
    return all(one.decibels < -least for one in _gains(new, old, arrays))


def _gains(new: Score, old: Score, arrays: slice) -> tuple[Gain, Gain]:
    """Return the gain of pooled errors and the mean gain of samples, over the same arrays.

    The error of the former is that of as many samples as have a share in the errors.
    """
    signal = new.signal[:, arrays]
    errors = [np.maximum(score.errors[:, arrays], _LEAST * signal) for score in (new, old)]
    counts = (signal > 0) & (errors[1] > _LEAST * signal)
    with np.errstate(all="ignore"):
        each = np.clip(10 * np.log10(errors[1] / errors[0]), -_MOST, _MOST)
        each = np.where(counts, each, np.nan)
        shares = errors[1] + errors[0]
        effective = shares.sum(0) ** 2 / np.square(shares).sum(0)
        pooled = _mean(
            _decibels(signal.sum(0), errors[0].sum(0)) - _decibels(signal.sum(0), errors[1].sum(0))
        )
    samples = np.array([_mean(row) for row in each])
    spread = float(samples.std(ddof=1)) if len(samples) > 1 else _MOST
    least = max(1.0, _mean(effective[np.isfinite(effective)]))
    return Gain(pooled, spread / least**0.5), Gain(float(samples.mean()), spread / len(samples) ** 0.5)


def drags(new: Score, old: Score, dragged: float = _DRAGGED) -> bool:
    """Return whether one of several outputs pays for the others, by more than some dB."""
    if new.count < 2:
        return False
    made, before = (np.nan_to_num(score.decibels[: score.count], nan=np.inf) for score in (new, old))
    worst = int(made.argmin())
    return bool(made[worst] < before.min() - dragged - new.chance[worst])


def falls(new: Score, old: Score) -> bool:
    """Return whether errors pooled over samples are clearly larger, of outputs and what they saturate.

    What samples gain on the average is not worth one that is lost. Arrays of few numbers count less.
    """
    with np.errstate(invalid="ignore"):  # of an output that is 0 and should be, or is not and should be
        differences = new.decibels - old.decibels
    chance = new.chance
    weights = np.where(np.isfinite(differences), 1 / (chance**2 + _VIEW_BIAS**2), 0)
    if not weights.any():
        return False
    shares = weights / weights.sum()
    error = float(np.square(shares * chance).sum()) ** 0.5
    return float(np.nan_to_num(differences) @ shares) < -(_FALLEN + error)
