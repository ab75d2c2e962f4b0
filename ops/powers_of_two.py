"""Power-of-two scales, with which a processor rescales integers by shifts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_LEAST, _GREATEST = -126, 127
"""Exponents of normal float32 numbers."""

HALVINGS = np.ldexp(1.0, -np.arange(7))
"""Factors on the least power of two that covers all numbers, to try in a search for the least error."""


def ceil_power(scale: ArrayLike) -> NDArray[np.float32]:
    """Return the least normal float32 power of two not below each positive number.

    Numbers above 2^127 become 2^127.
    """
    mantissa, exponent = np.frexp(np.asarray(scale, np.float64))
    least = np.where(mantissa == 0.5, exponent - 1, exponent)
    return np.ldexp(np.float32(1), np.clip(least, _LEAST, _GREATEST).astype(np.int32)).astype(np.float32)


def are_powers(scale: ArrayLike) -> bool:
    """Return whether all numbers are powers of two."""
    return bool((np.frexp(np.asarray(scale, np.float64))[0] == 0.5).all())


def power_scale(scale: ArrayLike, steps: ArrayLike) -> NDArray[np.float32]:
    """Return the least power of two not below a scale, or the largest for which so many steps are finite."""
    power = ceil_power(scale)
    beyond = np.asarray(power, np.float64) * np.asarray(steps, np.float64) > np.finfo(np.float32).max
    return np.where(beyond, power / 2, power).astype(np.float32)
