"""From the statistics of a tensor to the range that an integer format covers.

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
from transforms.calibrate.extrapolated_range import extrapolate
from transforms.calibrate.histogram import Histogram, fold
from transforms.calibrate.range_statistics import RangeStats
from transforms.scheme.scheme_values import METHODS

Range = tuple[float, float]

BEYOND = frozenset({"Extrapolated", "Wide"})
"""Methods whose ranges are wider than what was observed."""

_LARGEST = float(np.finfo(np.float32).max)
_ROOMS = ((8, 1.25), (16, 1.5), (32, 16.0))
"""By how much Wide is wider than what was seen, for formats of up to so many bits: steps are finer there."""


@dataclass(frozen=True)
class CalibrationOptions:
    """How ranges follow from data.

    ``method`` is one of ``METHODS``. ``percentile`` (method Percentile) is the share of numbers inside the
    range, in percent. ``moving_average`` (method MinMax) takes the moving averages of the lowest and highest
    numbers of the samples, into which each sample enters with ``averaging_constant``. ``memory_limit``: the
    most bytes of tensors of a sample that may be in memory at once, no range depends on it. ``power_of_two``:
    the scale will be the least power of two for the range, and method MSE compares such scales. ``tensors``:
    the method of single tensors, by name.
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
        """Whether the method looks at more than lowest and highest numbers."""
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

    ``symmetric`` is whether zero will be in the middle of what the format covers: clipping is then decided by
    magnitudes. ``method``: in place of that of the options. A tensor without any finite number has that of
    zero. ValueError for a format that has no scale, and a tensor without elements in all samples.
    """
    if not format.is_integer:
        raise ValueError(f"format '{format.name}' has no scale and needs no range")
    if observed.is_empty and not observed.count:
        raise ValueError("it had no elements in any sample")
    if observed.is_empty:  # all that was there is infinite or NaN, and has no place in any range
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
        room = next(room for bits, room in _ROOMS if format.bits <= bits)
        if method == "Extrapolated":
            return extrapolate(observed, levels, symmetric=symmetric, room=room)
        low, high = (float(np.clip(end * room, -_LARGEST, _LARGEST)) for end in extremes)
        return low, high  # zero stays the end of what begins there
    assert observed.histogram is not None
    if method == "Percentile":
        return _percentile(observed.histogram, options.percentile / 100, symmetric=symmetric)
    if method == "Entropy":
        return clip_by_entropy(observed.histogram, levels, symmetric=symmetric)
    clip = clip_to_power if options.power_of_two else clip_by_error
    return clip(observed.histogram, extremes, levels, symmetric=symmetric)


def _percentile(histogram: Histogram, inside: float, *, symmetric: bool) -> Range:
    """Cut the largest magnitudes off (symmetric), or as many numbers at either end."""
    counts, edges = histogram.counts, histogram.edges
    if symmetric:
        limit = _quantile(fold(counts), edges[len(counts) // 2 :], inside)
        return -limit, limit
    outside = (1 - inside) / 2
    return _quantile(counts, edges, outside), _quantile(counts, edges, 1 - outside)


def _quantile(counts: NDArray[np.int64], edges: NDArray[np.float64], fraction: float) -> float:
    """Return the number below which a fraction of the counted numbers lies, taken as even within a bin."""
    up_to = np.cumsum(counts)
    rank = fraction * up_to[-1]
    i = int(np.searchsorted(up_to, max(rank, 1e-9)))
    share = 1 - (up_to[i] - rank) / counts[i]
    return float(edges[i] + share * (edges[i + 1] - edges[i]))
