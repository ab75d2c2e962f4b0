"""Ranges that reach beyond the samples as far as is worth it: numbers of other samples are cut off, too.

A tensor of few numbers has its largest ones in samples that nobody has seen, and every one that is cut off
costs as much as rounding all of them. Of many numbers a wider range costs more than it brings.
"""

from __future__ import annotations

import numpy as np

from transforms.calibrate.range_statistics import RangeStats
from transforms.calibrate.sample_ends import HIGH, LOW, MAGNITUDE

_FEWEST = 4
"""Samples whose ends tell how those of others scatter."""

_WIDENED = np.linspace(1.0, 2.0, 41)
"""By how much ranges may be wider than what was seen."""

_CUT = 1 / 3
"""How much of the energy that Gumbel's tail has beyond a range is expected there.

Most tails are lighter. Of 54 trained networks, with 8 samples, as many gained by a third as by all of it
(4.6 and 4.7 dB in the mean, 2.7 and 2.7 with symmetric ranges), and fewer lost (13 cells of 108 by more than
0.5 dB in place of 18).
"""


def extrapolate(observed: RangeStats, levels: int, *, symmetric: bool) -> tuple[float, float]:
    """Return the range of a grid of ``levels`` numbers with the least expected error of another sample.

    Not within what was seen, and not beyond its limits. ``symmetric``: the grid reaches as far on both sides,
    and so does the range that the far end asks for.
    """
    low, high = observed.low, observed.high
    below, above = max(-low, 0.0), max(high, 0.0)
    if observed.ends.count < _FEWEST:
        return low, high
    if symmetric:
        reach = _reach(observed, MAGNITUDE, max(below, above), 2 / levels, 0.0)
        below, above = (reach, above) if below > above else (below, reach)
    else:
        step = 1 / (levels - 1)
        below, above = (
            _reach(observed, LOW, below, step, above * step),
            _reach(observed, HIGH, above, step, below * step),
        )
    least, most = observed.limits
    wide = min(low, max(-below, least)), max(high, min(above, most))
    return wide if np.isfinite(wide).all() else (low, high)


def _reach(observed: RangeStats, end: int, seen: float, step: float, other: float) -> float:
    """Return how far an end reaches; the step of the grid is ``step`` times that, and ``other`` more."""
    found = observed.ends.beyond(end)
    if found is None or not 0 < seen < np.finfo(np.float32).max:
        return seen
    location, scale = found
    reaches = seen * _WIDENED
    rounded = observed.count / observed.ends.count * (step * reaches + other) ** 2 / 12
    cut = 2 * scale**2 * np.exp(np.minimum((location - reaches) / scale, 50.0))
    return float(reaches[np.argmin(rounded + _CUT * cut)])
