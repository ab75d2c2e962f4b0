"""Constants that mask: so large that nothing is left of what they are added to, or is meant to be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = 1e4
"""Magnitude from which a constant is taken for a mask; -10000 is the least that exporters write."""

NO_FRACTION = 2.0**24
"""A float32 number to which this is added has no fraction left: such a constant is not an offset."""


def masks_in(values: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which numbers of a constant that is added are masks; of one with NaN none is.

    Infinities, numbers that leave no fraction of what they are added to, and those from 10000 on that are
    beside smaller ones: a bias of which all numbers are large is an offset, as that of a price.
    """
    sizes = np.abs(values)
    least = MASK if (sizes < MASK).any() else NO_FRACTION
    return np.asarray(sizes >= least) & ~np.isnan(values).any()
