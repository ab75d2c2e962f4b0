"""Errors of outputs beside the float model, and what one model gains over another, with its uncertainty."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import AnyArray, Feed, Float64Array
from ops.metrics import decibels, sums_of_numbers
from transforms.judge.constants import MAY_LOSE, ONE_SAMPLE, WORTH

_NOT_FINITE = 1e30  # error energy of an output that is not finite, or of another shape
_EXACT = 1e-12  # share of the signal: what float32 rounding leaves


def energies(expected: Feed, found: Feed, logits: Collection[str] = ()) -> Float64Array:
    """Return the squared error of each array of a sample, [arrays]; 0 of those that were not found.

    That of ``logits`` is the divergence of their probabilities from those expected, in nats, of all rows
    (:mod:`ops.divergence`): near the float model it is a square of the error, too.
    """
    pairs = ((name, array, found.get(name, array)) for name, array in expected.items())
    return np.array([_energy(*pair, are_logits=name in logits) for name, *pair in pairs], np.float64)


def signals(expected: Feed, logits: Collection[str] = ()) -> Float64Array:
    """Return the squares of each array of a sample, [arrays]; of ``logits`` 1 nat for each row."""
    return np.array([_signal(array, name in logits) for name, array in expected.items()], np.float64)


def _energy(expected: AnyArray, found: AnyArray, *, are_logits: bool) -> float:
    if found.shape != expected.shape:
        return _NOT_FINITE
    if are_logits:
        from ops.divergence import divergence

        error = divergence(expected, found)
    else:
        error = sums_of_numbers(expected, found).error_energy
    return error if np.isfinite(error) else _NOT_FINITE


def _signal(expected: AnyArray, are_logits: bool) -> float:
    if are_logits:
        return float(expected.size / max(expected.shape[-1], 1))
    return _energy(expected, np.zeros_like(expected), are_logits=False)


_BEFORE = "in tensors before the outputs"


@dataclass(frozen=True)
class Errors:
    """Squared errors of a model beside the ``signal``, both [samples, arrays].

    The first ``count`` arrays are the outputs, the others views: what an output saturates or sums up.
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
        """The mean over the outputs that hold a signal, in dB."""
        return _mean(self.decibels)

    def at_most(self, decibels: float) -> Errors:
        """Return the errors of outputs that are no better than so many dB: what is beyond counts nothing."""
        return Errors(np.maximum(self.errors, 10 ** (-decibels / 10) * self.signal), self.signal, self.count)

    def of_outputs(self, places: Sequence[int]) -> Errors:
        """Return the errors of some of the outputs and views, as outputs."""
        return Errors(self.errors[:, places], self.signal[:, places], len(places))

    def largest(self, count: int) -> list[int]:
        """Return the places of so many samples that hold the largest shares of the errors, in order."""
        whole = self.errors[:, : self.count]
        shares = np.divide(whole, whole.sum(0), out=np.zeros_like(whole), where=whole.sum(0) > 0).sum(1)
        return sorted(np.argsort(-shares, kind="stable")[:count].tolist())

    def of_samples(self, kept: AnyArray) -> Errors:
        """Return the errors of some of the samples alone."""
        return Errors(self.errors[kept], self.signal[kept], self.count)

    @property
    def relative(self) -> float:
        """The error by the power over all samples, in the mean over outputs; may be infinite.

        A figure in one unit only of outputs that are logits, or of none that are.
        """
        found, power = (part[:, : self.count].sum(0) for part in (self.errors, self.signal))
        with np.errstate(all="ignore"):
            shares = np.where(found == 0, 0.0, found / power)
        return float(shares.mean()) if shares.size else np.inf

    @property
    def decibels_error(self) -> float:
        """The standard error in dB of this as a ratio (:func:`error_of_decibels`), 0 of one sample."""
        rows = np.arange(len(self.errors))
        left_out = [self.of_samples(rows != row).relative for row in rows]
        return error_of_decibels(decibels(self.relative), list(map(decibels, left_out)))


@dataclass(frozen=True)
class Gain:
    """By how many dB the outputs of a model are better, with the standard error over samples.

    ``view``, ``view_error``: the same before the functions that outputs saturate, where there are any: of
    probabilities, one sample may hold nearly all of the error. ``worst``: the least change of an output, in
    dB, with its standard error.
    """

    decibels: float
    error: float
    view: float
    view_error: float
    worst: float
    worst_error: float

    def is_accepted(self, cost: float = WORTH, *, certainty: float = 1.0) -> bool:
        """Return whether a gain is beyond its standard error and ``cost`` in dB, and no output regresses.

        Outputs or views have to show the gain, and neither may show a loss: of probabilities, a few samples
        show neither. The one rule of all moves and of tuning. ``certainty``: standard errors that a gain has
        to exceed.
        """
        pairs = (self.decibels, self.error), (self.view, self.view_error)
        shown = any(gained > max(certainty * error, cost) for gained, error in pairs)
        losing = any(gained < -max(error, MAY_LOSE) for gained, error in pairs)
        return shown and not losing and not self.is_regression

    @property
    def is_harmless(self) -> bool:
        """Whether outputs lose no more than chance would take."""
        return self.decibels >= -self.error and not self.is_regression

    @property
    def is_regression(self) -> bool:
        """Whether an output is worse by more than ``MAY_LOSE``, and by more than chance."""
        return self.worst < -max(MAY_LOSE, self.worst_error)

    def __str__(self) -> str:
        if self._is_of_views:
            return f"{self.view:+.2f} +- {self.view_error:.2f} dB {_BEFORE}"
        return f"{self.decibels:+.2f} +- {self.error:.2f} dB"

    @property
    def shown(self) -> str:
        """The gain in dB where it is beyond its standard error; empty for another, which is none."""
        if self._is_of_views:
            return f"{self.view:+.1f} dB {_BEFORE}"
        return f"{self.decibels:+.1f} dB" if self.decibels > self.error else ""

    @property
    def _is_of_views(self) -> bool:
        """Whether the outputs show no gain, and their views do."""
        return self.decibels <= self.error and self.view > self.view_error


def gain(new: Errors, old: Errors) -> Gain:
    """Return what a model gains over another on the same samples.

    The gain is that of errors pooled over samples, in dB, in the mean over outputs. Standard errors are those
    of the jackknife over samples (B. Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982,
    equation 3.2), infinite for one sample.
    """
    outputs = _gain_of(new, old, slice(new.count))
    has_views = new.signal.shape[1] > new.count
    views = _gain_of(new, old, slice(new.count, None)) if has_views else outputs
    worst = jackknife([_worst(*pair) for pair in _left_out(new, old)])
    return Gain(*outputs, *views, _worst(new, old), worst)


def changes(new: Errors, old: Errors) -> Float64Array:
    """Return by how many dB each output became better; 0 if the float model makes zeros."""
    return np.nan_to_num(new.decibels - old.decibels)


def _gain_of(new: Errors, old: Errors, arrays: slice) -> tuple[float, float]:
    def _of(one: Errors, other: Errors) -> float:
        signal = one.signal[:, arrays].sum(0)
        pair = (_decibels(signal, found.errors[:, arrays].sum(0)) for found in (one, other))
        made, before = pair
        return _mean(made - before)

    return _of(new, old), jackknife([_of(*pair) for pair in _left_out(new, old)])


def _left_out(new: Errors, old: Errors) -> list[tuple[Errors, Errors]]:
    """Return both without each of the samples in turn."""
    rows = np.arange(len(new.errors))
    return [(new.of_samples(rows != row), old.of_samples(rows != row)) for row in rows if len(rows) > 1]


def jackknife(values: list[float]) -> float:
    """Return the standard error of what is found without each of some samples in turn."""
    if len(values) < 2:
        return float("inf")
    return float(np.sqrt((len(values) - 1) * np.var(values)))


def error_of_decibels(value: float, left_out: Sequence[float]) -> float:
    """Return the standard error of a ratio in dB by the :func:`jackknife`; 0 where none can be told.

    ``left_out``: the ratio without each sample in turn. Where few samples hold the error, as those that are
    beyond the ranges of the others, it is large: nobody knows how many such samples there are elsewhere. One
    that holds more than nine tenths counts as nine tenths, 10 dB: the rest may have no error at all.
    """
    if len(left_out) < 2 or not np.isfinite(value):
        return 0.0
    return jackknife(np.clip(left_out, value - ONE_SAMPLE, value + ONE_SAMPLE).tolist())


def _worst(new: Errors, old: Errors) -> float:
    found = changes(new, old)
    return float(found.min()) if found.size else 0.0


def _decibels(signal: Float64Array, errors: Float64Array) -> Float64Array:
    with np.errstate(all="ignore"):
        return np.where(signal > 0, 10 * np.log10(signal / np.maximum(errors, _EXACT * signal)), np.nan)


def _mean(values: Float64Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else 0.0
