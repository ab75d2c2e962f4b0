"""Errors of an output in two sessions, and whether rounding and orders of sums explain their difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ops.array_types import AnyArray
from ops.metrics import sums_of_numbers

EXPLAINED = 2.0
"""Times of the error of one session that the other may have, in power: 3 dB.

Both round to the same levels. Where two numbers lie next to the middle between levels another order of sums
takes the other one, which adds a share of the error that rounding makes anyway; all of it once more, at
most, if it hit every number: independent errors of equal power.
"""

CHANCE = 3.1
"""Standard deviations by which a ratio of two errors may differ by chance: beyond there is one in a thousand.

The logarithm of a sum of n squares has a variance of about 2 / n, that of the ratio of two the sum of both.
"""

NOTICED = 1e-6
"""Error of a session by the power of an output, up to which orders of sums explain it: (1e-3)^2, as where two
float models are compared (:mod:`transforms.runtime.compare_runs`)."""


ROUNDED_INPUTS = 1e-4
"""Error by power that a MatMulNBits of level 4 may add in one session alone.

Kernels round its inputs to int8, a scale for each block, where they pack its weights when a model is opened,
which depends on the constants that optimization folds. Rounding a block whose largest number is c times its
root mean square makes c^2 / (12 * 127^2) of its power: 8.3e-5 for c = 4.
"""

MOST_ROUNDED = 1e-2
"""The same of all such products together, at most: 20 dB, above which a model is of no use anyway."""


@dataclass(frozen=True)
class OutputErrors:
    """Squared errors of an output, by its mean square ``power`` in the float model.

    ``made``: in a session as users open it, against the float model; ``plain``: the same without
    optimization; ``between``: of the one against the other. Errors scatter like those of so many numbers:
    ``made_count``, ``plain_count``. ``noticed``: from which on a difference means something.
    """

    power: float
    made: float
    plain: float
    between: float
    made_count: float
    plain_count: float
    noticed: float = NOTICED

    @classmethod
    def of(cls, wanted: AnyArray, made: object, plain: object, noticed: float = NOTICED) -> OutputErrors:
        """Return the errors of an output in both sessions."""
        return cls(
            _power(wanted),
            relative_error(wanted, made),
            relative_error(wanted, plain),
            relative_error(plain, made),
            _count(wanted, made),
            _count(wanted, plain),
            noticed,
        )

    @property
    def is_wrong(self) -> bool:
        """Whether one of the sessions is further from the float model than rounding explains."""
        return self.is_made_wrong or self.is_plain_wrong

    @property
    def is_made_wrong(self) -> bool:
        """Whether optimization makes more error than rounding explains."""
        return self.between > self.noticed and self.made > self._explained(self.plain)

    @property
    def is_plain_wrong(self) -> bool:
        """Whether a session without optimization makes more error than rounding explains."""
        return self.between > self.noticed and self.plain > self._explained(self.made)

    def _explained(self, error: float) -> float:
        scatter = math.sqrt(sum(2 / max(count, 1) for count in (self.made_count, self.plain_count)))
        return EXPLAINED * math.exp(CHANCE * scatter) * error + self.noticed


def _power(array: AnyArray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.mean(np.square(finite, dtype=np.float64))) if finite.size else 0.0


def _count(wanted: AnyArray, found: object) -> float:
    """Return how many numbers of equal errors scatter as much as these: after a Softmax a few are all."""
    assert isinstance(found, np.ndarray)
    if wanted.shape != found.shape:
        return wanted.size
    with np.errstate(all="ignore"):
        squares = np.square(np.asarray(wanted, np.float64) - np.asarray(found, np.float64))
    squares = squares[np.isfinite(squares)]
    return float(squares.sum() ** 2 / np.square(squares).sum()) if squares.any() else wanted.size


def relative_error(wanted: object, found: object) -> float:
    """Return squared error by power of an array; infinite where the other has another shape or NaN.

    Numbers that are NaN or infinite in the first do not count.
    """
    assert isinstance(wanted, np.ndarray) and isinstance(found, np.ndarray)
    if wanted.shape != found.shape:
        return np.inf
    sums = sums_of_numbers(wanted, found)
    if sums.other_non_finite:
        return np.inf
    error, power = sums.error_energy, sums.baseline_energy
    return 0.0 if error == 0 else error / power if power else np.inf
