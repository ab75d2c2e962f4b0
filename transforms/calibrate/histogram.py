"""A histogram that grows with its data, in one pass and with fixed memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.histograms import count_in_bins

BINS = 4096
"""Bins of a histogram, half of them for numbers below zero."""

_LEAST_EXPONENT = -100  # of the bound of an empty histogram
_FEW_NUMBERS = 1024  # buffered to be counted together, in no more memory than counts take
_NO_COUNTS, _NO_NUMBERS = np.zeros(0, np.uint8), np.zeros(0, np.float32)
_CHUNK = 1 << 18  # numbers to count at a time: copies of the finite ones are small


class Histogram:
    """Counts of float32 numbers in ``BINS`` equal bins over [-bound, bound), where bound is a power of two.

    The bound is the smallest power above every magnitude so far. When it grows, bins are merged in pairs,
    which is exact: the counts depend neither on the order of the numbers nor on their distribution over
    histograms that are merged. A bin includes its lower edge. Counts are stored in the smallest type that
    holds them, since there may be a histogram for each of many tensors. Numbers of small samples are
    buffered and counted together.
    """

    def __init__(self, exponent: int = _LEAST_EXPONENT, counts: NDArray[np.int64] | None = None) -> None:
        """Make a histogram with the bound 2**exponent, empty unless counts [BINS] are given."""
        self.exponent = exponent
        self._stored: NDArray[Any] = _NO_COUNTS if counts is None else _packed(counts)
        self._waiting = _NO_NUMBERS  # all finite and within the bound

    @property
    def counts(self) -> NDArray[np.int64]:
        """The counts, [BINS], as a new array."""
        counts = self._stored.astype(np.int64) if self._stored.size else np.zeros(BINS, np.int64)
        if self._waiting.size:
            count_in_bins(self._waiting, self.exponent, counts)
        return counts

    @property
    def bound(self) -> float:
        """The end of the last bin; the first begins at ``-bound``."""
        return math.ldexp(1.0, self.exponent)

    @property
    def bin_width(self) -> float:
        """The width of a bin."""
        return self.bound * 2 / BINS

    @property
    def edges(self) -> NDArray[np.float64]:
        """The edges of the bins, [BINS + 1]."""
        return np.arange(-BINS // 2, BINS // 2 + 1, dtype=np.float64) * self.bin_width

    @property
    def counts_but_zeros(self) -> NDArray[np.int64]:
        """The counts, with those of the bin from zero on limited to the next bin's: the rest counts as zeros.

        Every format represents zero, so the many zeros after a Relu should not influence clipping.
        """
        counts = self.counts
        counts[BINS // 2] = min(counts[BINS // 2 : BINS // 2 + 2])
        return counts

    def add(self, x: NDArray[np.float32], low: float, high: float, *, finite: bool = True) -> None:
        """Count the numbers of an array of any shape, from ``low`` to ``high``.

        There must be no NaN; infinities are skipped if not all numbers are ``finite``.
        """
        x = x.reshape(-1)
        self._reach(max(-low, high))
        if finite and x.size + self._waiting.size <= _FEW_NUMBERS:
            self._waiting = np.concatenate((self._waiting, x))
            return
        counts = self.counts
        for start in range(0, x.size, _CHUNK):
            numbers = x[start : start + _CHUNK]
            count_in_bins(numbers if finite else numbers[np.isfinite(numbers)], self.exponent, counts)
        self._stored, self._waiting = _packed(counts), _NO_NUMBERS

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        exponent = max(self.exponent, other.exponent)
        counts = _merge(self.counts, exponent - self.exponent)
        counts += _merge(other.counts, exponent - other.exponent)
        self._stored, self._waiting, self.exponent = _packed(counts), _NO_NUMBERS, exponent

    def _reach(self, magnitude: float) -> None:
        """Raise the bound above a magnitude."""
        exponent = math.frexp(magnitude)[1]
        if magnitude > 0 and exponent > self.exponent:
            if self._stored.size:
                self._stored = _packed(_merge(self._stored.astype(np.int64), exponent - self.exponent))
            self.exponent = exponent


def _packed(counts: NDArray[np.int64]) -> NDArray[Any]:
    return counts.astype(np.min_scalar_type(counts.max()))


def fold(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the counts of magnitudes, [n / 2], from those of numbers around zero, [n]."""
    half = len(counts) // 2
    return counts[half:] + counts[:half][::-1]


def _merge(counts: NDArray[np.int64], doublings: int) -> NDArray[np.int64]:
    """Return the counts in bins wider by a power of two, around the same zero."""
    if not doublings or not counts.any():
        return counts
    half = BINS // 2
    merged = min(1 << doublings, half)
    sums = counts.reshape(-1, merged).sum(axis=1)
    result = np.zeros_like(counts)
    start = half - len(sums) // 2
    result[start : start + len(sums)] = sums
    return result
