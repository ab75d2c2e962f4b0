"""Derive the range of an integer format from the statistics of a tensor.

All methods but Extrapolated and Wide return a range within the lowest and the highest number observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ops.formats import Format
from ops.legal_names import refuse_unknown
from transforms.calibrate.clip_histogram import clip_by_entropy, clip_by_error, clip_to_power
from transforms.calibrate.histogram import Histogram, fold
from transforms.calibrate.range_statistics import HIGH, LOW, MAGNITUDE, RangeStats
from transforms.scheme.scheme_values import METHODS

Range = tuple[float, float]

BEYOND = frozenset({"Extrapolated", "Wide"})
"""Methods whose ranges exceed the observed numbers."""

_LARGEST = float(np.finfo(np.float32).max)
_HEADROOM = ((8, 1.25), (16, 1.5), (32, 16.0))
"""Factor by which Wide exceeds the observed range, for formats of up to this many bits."""

_FEWEST = 4
"""Samples needed to estimate how the ends of others scatter."""

_FINE = 1 << 16
"""Grids of at least this many levels get headroom for unseen samples."""

_WIDENED = np.geomspace(1.0, 4.0, 81)
"""Factors by which ranges may exceed the observed one: with 8 bits more than 2 is rarely useful."""

_CUT, _LEAST_CUT = 8 / 3, 0.1
"""Expected share of the energy of Gumbel's tail beyond a range: divided by the samples, and the least.

Tails of most tensors are lighter, which more samples show better. Of 54 trained networks with 8 samples as
many gained by a third of that energy as by all of it (4.6 and 4.7 dB in the mean, 2.7 and 2.7 with symmetric
ranges), and 13 cells of 108 lost more than 0.5 dB instead of 18; with 32 samples they gained 0.4 dB by a
tenth of it, and 0.15 by a third, 17 losing instead of 34.
"""


@dataclass(frozen=True)
class CalibrationOptions:
    """How ranges are derived from data.

    ``method`` is one of ``METHODS``. ``percentile`` (method Percentile) is the share of numbers inside the
    range, in percent. ``moving_average`` (method MinMax) uses the moving averages of the samples' lowest and
    highest numbers, which each sample enters with ``averaging_constant``. ``memory_limit``: the most bytes
    of a sample's tensors in memory at once; no range depends on it. ``power_of_two``: the scale will be the
    least power of two for the range, and method MSE compares such scales. ``tensors``: the method of single
    tensors, by name.
    """

    method: str = "MinMax"
    percentile: float = 99.999
    moving_average: bool = False
    averaging_constant: float = 0.01
    memory_limit: int | None = None
    power_of_two: bool = False
    tensors: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for method in (self.method, *self.tensors.values()):
            refuse_unknown(method, METHODS, "calibration method")
        if not 0 < self.percentile <= 100:
            raise ValueError(f"percentile {self.percentile} is not above 0 and at most 100")
        if not 0 < self.averaging_constant <= 1:
            raise ValueError(f"averaging constant {self.averaging_constant} is not above 0 and at most 1")
        if self.moving_average and self.method != "MinMax":
            raise ValueError(f"a moving average is part of method MinMax, not of {self.method}")

    @property
    def needs_histogram(self) -> bool:
        """Whether the method needs more than the lowest and highest numbers."""
        return not {self.method, *self.tensors.values()} <= {"MinMax", *BEYOND}


def choose_range(
    observed: RangeStats,
    format: Format,
    *,
    symmetric: bool,
    options: CalibrationOptions,
    method: str | None = None,
) -> Range:
    """Return the range of an observed tensor for an integer format.

    ``symmetric``: zero will be in the middle of the format's range, so that magnitudes decide clipping.
    ``method``: replaces that of the options. A tensor without any finite number has the range of zero.
    ValueError for a format without a scale, and for a tensor without elements in all samples.
    """
    if not format.is_integer:
        raise ValueError(f"format '{format.name}' has no scale and needs no range")
    if observed.is_empty and not observed.count:
        raise ValueError("it had no elements in any sample")
    if observed.is_empty:  # only infinities and NaN, which have no place in any range
        return 0.0, 0.0
    method = method or options.method
    ends = _ends(method, observed, format, options, symmetric=symmetric)
    if method in BEYOND:
        return ends
    low, high = (min(max(end, observed.low), observed.high) for end in ends)
    return low, high


def _ends(
    method: str, observed: RangeStats, format: Format, options: CalibrationOptions, *, symmetric: bool
) -> Range:
    extremes, levels = (observed.low, observed.high), round(2**format.bits)
    if method == "MinMax":
        return (observed.average if options.moving_average else None) or extremes
    if method in BEYOND:
        headroom = next(headroom for bits, headroom in _HEADROOM if format.bits <= bits)
        if method == "Extrapolated":
            return _extrapolated(observed, levels, symmetric=symmetric, headroom=headroom)
        low, high = (float(np.clip(end * headroom, -_LARGEST, _LARGEST)) for end in extremes)
        return low, high  # zero stays the end of a range that begins there
    assert observed.histogram is not None
    if method == "Percentile":
        return _percentile(observed.histogram, options.percentile / 100, symmetric=symmetric)
    if method == "Entropy":
        return clip_by_entropy(observed.histogram, levels, symmetric=symmetric)
    clip = clip_to_power if options.power_of_two else clip_by_error
    return clip(observed.histogram, extremes, levels, symmetric=symmetric)


def _extrapolated(seen: RangeStats, levels: int, *, symmetric: bool, headroom: float) -> tuple[float, float]:
    """Return the range of a grid of ``levels`` numbers with the least expected error on another sample.

    A small tensor has its largest numbers in unseen samples, and clipping one of them costs as much as
    rounding all numbers. For a large tensor a wider range costs more than it gains.

    The range covers the observed numbers and stays within the tensor's limits. ``symmetric``: the grid, and
    the range that the farther end requires, extend equally on both sides. ``headroom``: the least factor
    over the observed range if steps are fine or samples too few to estimate.
    """
    below, above = max(-seen.low, 0.0), max(seen.high, 0.0)
    if seen.ends.count < _FEWEST:
        return _limited(seen, headroom * below, headroom * above)
    least = headroom if levels >= _FINE else 1.0
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
    """Return the range from ``below`` under zero to ``above`` over it, within the tensor's limits."""
    least, most = seen.limits
    low, high = max(-below, least, -_LARGEST), min(above, most, _LARGEST)
    ends = min(seen.low, low), max(seen.high, high)
    return ends[0] if below else seen.low, ends[1] if above else seen.high


def _reach(seen: RangeStats, end: int, largest: float, step: float, other: float) -> float:
    """Return the extent of an end; the step of the grid is ``step`` times that, plus ``other``."""
    gumbel = seen.ends.beyond(end)
    if gumbel is None or largest == 0:
        return largest
    location, scale = gumbel
    reaches = largest * _WIDENED
    rounded = seen.count / seen.ends.count * (step * reaches + other) ** 2 / 12
    cut = 2 * scale**2 * np.exp(np.minimum((location - reaches) / scale, 50.0))
    share = max(_CUT / seen.ends.count, _LEAST_CUT)
    return float(reaches[np.argmin(rounded + share * cut)])


def _percentile(histogram: Histogram, inside: float, *, symmetric: bool) -> Range:
    """Clip the largest magnitudes (symmetric), or as many numbers at either end."""
    counts, edges = histogram.counts, histogram.edges
    if symmetric:
        limit = _quantile(fold(counts), edges[len(counts) // 2 :], inside)
        return -limit, limit
    outside = (1 - inside) / 2
    return _quantile(counts, edges, outside), _quantile(counts, edges, 1 - outside)


def _quantile(counts: NDArray[np.int64], edges: NDArray[np.float64], fraction: float) -> float:
    """Return the number below which a fraction of the counted numbers lies, assumed even within a bin."""
    up_to = np.cumsum(counts)
    rank = fraction * up_to[-1]
    i = int(np.searchsorted(up_to, max(rank, 1e-9)))
    share = 1 - (up_to[i] - rank) / counts[i]
    return float(edges[i] + share * (edges[i + 1] - edges[i]))
