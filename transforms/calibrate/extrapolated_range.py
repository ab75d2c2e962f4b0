"""Ranges that reach beyond the samples as far as is worth it: numbers of other samples are cut off, too.

A tensor of few numbers has its largest ones in samples that nobody has seen, and every one that is cut off
costs as much as rounding all of them. Of many numbers a wider range costs more than it brings.
"""

from __future__ import annotations

import numpy as np

from transforms.calibrate.range_statistics import HIGH, LOW, MAGNITUDE, RangeStats

_LARGEST = float(np.finfo(np.float32).max)
FEWEST = 4
"""Samples whose ends tell how those of others scatter."""

_FINE = 1 << 16
"""Numbers of a grid from which on room for what samples do not tell costs next to nothing."""

_WIDENED = np.geomspace(1.0, 4.0, 81)
"""By how much ranges may be wider than what was seen: with 8 bits few are worth more than twice of it."""

_CUT, _LEAST_CUT = 8 / 3, 0.1
"""How much of the energy that Gumbel's tail has beyond a range is expected there: a share by samples, and the
least.

Tails of most tensors are lighter, which more samples tell better. Of 54 trained networks with 8 samples
as many gained by a third of that energy as by all of it (4.6 and 4.7 dB in the mean, 2.7 and 2.7 with
symmetric ranges), and 13 cells of 108 lost more than 0.5 dB in place of 18; with 32 samples they gained
0.4 dB by a tenth of it, and 0.15 by a third, 17 losing in place of 34.
"""


def extrapolate(seen: RangeStats, levels: int, *, symmetric: bool, room: float) -> tuple[float, float]:
    """Return the range of a grid of ``levels`` numbers with the least expected error of another sample.

    Not within what was seen, and not beyond its limits. ``symmetric``: the grid reaches as far on both sides,
    and so does the range that the far end asks for. ``room``: by how much it is wider than what was seen at
    least, if steps are fine or samples too few to tell.
    """
    below, above = max(-seen.low, 0.0), max(seen.high, 0.0)
    if seen.ends.count < FEWEST:
        return _limited(seen, room * below, room * above)
    least = room if levels >= _FINE else 1.0
    if symmetric:
        reach = _reach(seen, MAGNITUDE, max(below, above), 2 / levels, 0.0)
        further = [reach if end == max(below, above) else end for end in (below, above)]
    else:
        step = 1 / (levels - 1)
        further = [
            _reach(seen, LOW, below, step, above * step),
            _reach(seen, HIGH, above, step, below * step),
        ]
    return _limited(seen, max(further[0], least * below), max(further[1], least * above))


def _limited(seen: RangeStats, below: float, above: float) -> tuple[float, float]:
    """Return the range that reaches so far below and above zero, or as far as numbers can."""
    least, most = seen.limits
    low, high = max(-below, least, -_LARGEST), min(above, most, _LARGEST)
    ends = min(seen.low, low), max(seen.high, high)
    return ends[0] if below else seen.low, ends[1] if above else seen.high


def _reach(seen: RangeStats, end: int, largest: float, step: float, other: float) -> float:
    """Return how far an end reaches; the step of the grid is ``step`` times that, and ``other`` more."""
    found = seen.ends.beyond(end)
    if found is None or largest == 0:
        return largest
    location, scale = found
    reaches = largest * _WIDENED
    rounded = seen.count / seen.ends.count * (step * reaches + other) ** 2 / 12
    cut = 2 * scale**2 * np.exp(np.minimum((location - reaches) / scale, 50.0))
    share = max(_CUT / seen.ends.count, _LEAST_CUT)
    return float(reaches[np.argmin(rounded + share * cut)])
