"""Constants that act as masks: so large that adding them leaves nothing of other numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = 1e4
"""Magnitude from which a constant counts as a mask; -10000 is the smallest that exporters write."""

NO_FRACTION = 2.0**24
"""Adding this to a float32 number removes its fraction: such a constant is not an offset."""


def masks_in(values: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which numbers of an added constant are masks; none if it holds NaN.

    These are infinities, numbers that remove every fraction, and those from 10000 on that stand beside
    smaller ones: a bias whose numbers are all large is an offset, such as that of a price.
    """
    sizes = np.abs(values)
    least = MASK if (sizes < MASK).any() else NO_FRACTION
    return np.asarray(sizes >= least) & ~np.isnan(values).any()
