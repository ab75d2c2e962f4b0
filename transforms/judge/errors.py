"""Errors of outputs against the float model, and the gain of one model over another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import AnyArray, Feed, Float64Array
from ops.metrics import decibels, sums_of_numbers
from transforms.judge.constants import MAY_LOSE, ONE_SAMPLE, WORTH

_NOT_FINITE = 1e30  # error energy of an output that is not finite, or of another shape
_EXACT = 1e-12  # least error as a share of the signal, that of float32 rounding


def energies(expected: Feed, outputs: Feed, logits: Collection[str] = ()) -> Float64Array:
    """Return the squared error of each expected array of a sample, [arrays]; 0 for missing ones.

    The error of ``logits`` is the KL divergence of their probabilities from those expected, in nats, summed
    over rows (:mod:`ops.divergence`): for small errors it is quadratic in the error, too.
    """
    pairs = ((name, array, outputs.get(name, array)) for name, array in expected.items())
    return np.array([_energy(*pair, are_logits=name in logits) for name, *pair in pairs], np.float64)


def signals(expected: Feed, logits: Collection[str] = ()) -> Float64Array:
    """Return the energy of each array of a sample, [arrays]; for ``logits``, 1 nat for each row."""
    return np.array([_signal(array, name in logits) for name, array in expected.items()], np.float64)


def _energy(expected: AnyArray, output: AnyArray, *, are_logits: bool) -> float:
    if output.shape != expected.shape:
        return _NOT_FINITE
    if are_logits:
        from ops.divergence import divergence

        error = divergence(expected, output)
    else:
        error = sums_of_numbers(expected, output).error_energy
    return error if np.isfinite(error) else _NOT_FINITE


def _signal(expected: AnyArray, are_logits: bool) -> float:
    if are_logits:
        return float(expected.size / max(expected.shape[-1], 1))
    return _energy(expected, np.zeros_like(expected), are_logits=False)


_BEFORE = "in tensors before the outputs"


@dataclass(frozen=True)
class Errors:
    """Squared errors of a model and the energies of the ``signal``, both [samples, arrays].

    The first ``count`` arrays are outputs, the others views: inputs of functions that saturate outputs, or of
    sums that outputs consist of.
    """

    errors: Float64Array
    signal: Float64Array
    count: int

    @property
    def decibels(self) -> Float64Array:
        """The signal-to-noise ratio of each output, pooled over the samples, in dB, [count]; at most 120."""
        return _decibels(self.signal.sum(0), self.errors.sum(0))[: self.count]

    @property
    def mean(self) -> float:
        """The mean signal-to-noise ratio in dB, over outputs whose signal is not zero."""
        return _mean(self.decibels)

    def at_most(self, decibels: float) -> Errors:
        """Return errors raised in each sample to so many dB below the signal: smaller ones gain nothing."""
        return Errors(np.maximum(self.errors, 10 ** (-decibels / 10) * self.signal), self.signal, self.count)

    def of_outputs(self, places: Sequence[int]) -> Errors:
        """Return the errors of some of the arrays, all as outputs."""
        return Errors(self.errors[:, places], self.signal[:, places], len(places))

    def largest(self, count: int) -> list[int]:
        """Return the sorted indices of the ``count`` samples with the largest shares of the errors."""
        errors = self.errors[:, : self.count]
        shares = np.divide(errors, errors.sum(0), out=np.zeros_like(errors), where=errors.sum(0) > 0).sum(1)
        return sorted(np.argsort(-shares, kind="stable")[:count].tolist())

    def of_samples(self, rows: AnyArray) -> Errors:
        """Return the errors of some of the samples; ``rows``: indices or a mask."""
        return Errors(self.errors[rows], self.signal[rows], self.count)

    @property
    def relative(self) -> float:
        """The error relative to the signal over all samples, averaged over outputs; may be infinite.

        Outputs should be all logits or none, else units are mixed.
        """
        noise, power = (part[:, : self.count].sum(0) for part in (self.errors, self.signal))
        with np.errstate(all="ignore"):
            shares = np.where(noise == 0, 0.0, noise / power)
        return float(shares.mean()) if shares.size else np.inf

    @property
    def decibels_error(self) -> float:
        """The standard error in dB of ``relative`` (:func:`error_of_decibels`), 0 for one sample."""
        rows = np.arange(len(self.errors))
        left_out = [self.of_samples(rows != row).relative for row in rows]
        return error_of_decibels(decibels(self.relative), list(map(decibels, left_out)))


@dataclass(frozen=True)
class Gain:
    """The gain in dB of the outputs of a model over another, with its standard error over samples.

    ``view``, ``view_error``: the same for views, if there are any, such as the input of a Softmax: of
    probabilities, one sample may have nearly all of the error. ``worst``, ``worst_error``: the least gain of
    an output.
    """

    decibels: float
    error: float
    view: float
    view_error: float
    worst: float
    worst_error: float

    def is_accepted(self, cost: float = WORTH, *, certainty: float = 1.0) -> bool:
        """Return whether a gain exceeds its standard error and ``cost`` in dB, and no output regresses.

        Outputs or views have to show the gain, and neither may show a loss: probabilities of a few samples
        show neither. All moves and tuning use this rule. ``certainty``: the number of standard errors that a
        gain has to exceed.
        """
        pairs = (self.decibels, self.error), (self.view, self.view_error)
        shown = any(gained > max(certainty * error, cost) for gained, error in pairs)
        losing = any(gained < -max(error, MAY_LOSE) for gained, error in pairs)
        return shown and not losing and not self.is_regression

    @property
    def is_harmless(self) -> bool:
        """Whether outputs lose no more than one standard error, and none regresses."""
        return self.decibels >= -self.error and not self.is_regression

    @property
    def is_regression(self) -> bool:
        """Whether an output is worse by more than ``MAY_LOSE`` and its standard error."""
        return self.worst < -max(MAY_LOSE, self.worst_error)

    def __str__(self) -> str:
        if self._is_of_views:
            return f"{self.view:+.2f} +- {self.view_error:.2f} dB {_BEFORE}"
        return f"{self.decibels:+.2f} +- {self.error:.2f} dB"

    @property
    def shown(self) -> str:
        """The gain in words if it exceeds its standard error, else empty."""
        if self._is_of_views:
            return f"{self.view:+.1f} dB {_BEFORE}"
        return f"{self.decibels:+.1f} dB" if self.decibels > self.error else ""

    @property
    def _is_of_views(self) -> bool:
        """Whether only the views show a gain."""
        return self.decibels <= self.error and self.view > self.view_error


def gain(new: Errors, old: Errors) -> Gain:
    """Return the gain of a model over another on the same samples.

    The gain in dB is that of errors pooled over samples, averaged over outputs. Standard errors are by the
    jackknife over samples (B. Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982, equation
    3.2), infinite for one sample.
    """
    outputs = _gain_of(new, old, slice(new.count))
    has_views = new.signal.shape[1] > new.count
    views = _gain_of(new, old, slice(new.count, None)) if has_views else outputs
    worst = jackknife([_worst(*pair) for pair in _left_out(new, old)])
    return Gain(*outputs, *views, _worst(new, old), worst)


def changes(new: Errors, old: Errors) -> Float64Array:
    """Return the gain in dB of each output; 0 if the float model gives zeros."""
    return np.nan_to_num(new.decibels - old.decibels)


def _gain_of(new: Errors, old: Errors, arrays: slice) -> tuple[float, float]:
    def _of(model: Errors, base: Errors) -> float:
        signal = model.signal[:, arrays].sum(0)
        pair = (_decibels(signal, errors.errors[:, arrays].sum(0)) for errors in (model, base))
        new_decibels, old_decibels = pair
        return _mean(new_decibels - old_decibels)

    return _of(new, old), jackknife([_of(*pair) for pair in _left_out(new, old)])


def _left_out(new: Errors, old: Errors) -> list[tuple[Errors, Errors]]:
    """Return both without each of the samples in turn; an empty list for one sample."""
    rows = np.arange(len(new.errors))
    return [(new.of_samples(rows != row), old.of_samples(rows != row)) for row in rows if len(rows) > 1]


def jackknife(values: list[float]) -> float:
    """Return the standard error of a figure from its values without each sample in turn; inf for one."""
    if len(values) < 2:
        return float("inf")
    return float(np.sqrt((len(values) - 1) * np.var(values)))


def error_of_decibels(value: float, left_out: Sequence[float]) -> float:
    """Return the standard error of a ratio in dB by the :func:`jackknife`; 0 if it is not known.

    ``left_out``: the ratio without each sample in turn. The error is large if few samples have most of the
    error, such as those that exceed the ranges of the others: their share in other data is not known. A
    sample with more than nine tenths of the error counts as nine tenths, 10 dB: the rest may have no error.
    """
    if len(left_out) < 2 or not np.isfinite(value):
        return 0.0
    return jackknife(np.clip(left_out, value - ONE_SAMPLE, value + ONE_SAMPLE).tolist())


def _worst(new: Errors, old: Errors) -> float:
    gains = changes(new, old)
    return float(gains.min()) if gains.size else 0.0


def _decibels(signal: Float64Array, errors: Float64Array) -> Float64Array:
    with np.errstate(all="ignore"):
        return np.where(signal > 0, 10 * np.log10(signal / np.maximum(errors, _EXACT * signal)), np.nan)


def _mean(values: Float64Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else 0.0
