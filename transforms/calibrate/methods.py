"""From the statistics of a tensor to the range that an integer format covers.

All methods but Extrapolated and Wide return a range within the lowest and the highest number observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ops.formats import Format
from ops.legal_names import refuse_unknown
from transforms.calibrate.entropy_range import clip_by_entropy
from transforms.calibrate.extrapolated_range import Seen, extrapolate
from transforms.calibrate.mse_range import clip_by_error, clip_to_power
from transforms.calibrate.range_statistics import RangeStats

Range = tuple[float, float]

BEYOND = frozenset({"Extrapolated", "Wide"})
"""Methods whose ranges are wider than what was observed."""

_LARGEST = float(np.finfo(np.float32).max)
_ROOMS = ((8, 1.25), (16, 1.5), (32, 16.0))
"""By how much Wide is wider than what was seen, for formats of up to so many bits: steps are finer there."""


@dataclass(frozen=True)
class CalibrationOptions:
    """How ranges follow from data.

    ``method`` is a key of ``METHODS``. ``percentile`` (method Percentile) is the share of numbers inside the
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
    ends = METHODS[method](observed, format, symmetric, options)
    if method in BEYOND:
        return ends
    low, high = (min(max(end, observed.low), observed.high) for end in ends)
    return low, high


def _min_max(observed: RangeStats, format: Format, symmetric: bool, options: CalibrationOptions) -> Range:
    averages = observed.average if options.moving_average else None
    return averages or (observed.low, observed.high)


def _wide(observed: RangeStats, format: Format, symmetric: bool, options: CalibrationOptions) -> Range:
    """Leave room for numbers beyond those of the samples; zero stays the end of what begins there."""
    room = _room(format)
    low, high = (float(np.clip(end * room, -_LARGEST, _LARGEST)) for end in (observed.low, observed.high))
    return low, high


def _extrapolated(
    observed: RangeStats, format: Format, symmetric: bool, options: CalibrationOptions
) -> Range:
    seen = Seen(observed.low, observed.high, observed.count, observed.ends, observed.limits)
    return extrapolate(seen, round(2**format.bits), symmetric=symmetric, room=_room(format))


def _room(format: Format) -> float:
    return next(room for bits, room in _ROOMS if format.bits <= bits)


def _percentile(observed: RangeStats, format: Format, symmetric: bool, options: CalibrationOptions) -> Range:
    """Cut the largest magnitudes off (symmetric), or as many numbers at either end."""
    assert observed.histogram is not None
    counts, edges, inside = observed.histogram.counts, observed.histogram.edges, options.percentile / 100
    if symmetric:
        limit = _quantile(observed.histogram.magnitudes, edges[len(counts) // 2 :], inside)
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


def _entropy(observed: RangeStats, format: Format, symmetric: bool, options: CalibrationOptions) -> Range:
    assert observed.histogram is not None
    return clip_by_entropy(observed.histogram, round(2**format.bits), symmetric=symmetric)


def _least_error(observed: RangeStats, format: Format, symmetric: bool, options: CalibrationOptions) -> Range:
    assert observed.histogram is not None
    extremes = observed.low, observed.high
    if options.power_of_two:
        return clip_to_power(observed.histogram, extremes, round(2**format.bits), symmetric=symmetric)
    return clip_by_error(observed.histogram, extremes, round(2**format.bits), symmetric=symmetric)


METHODS: Mapping[str, Callable[[RangeStats, Format, bool, CalibrationOptions], Range]] = MappingProxyType(
    {
        "MinMax": _min_max,
        "Percentile": _percentile,
        "Entropy": _entropy,
        "MSE": _least_error,
        "Extrapolated": _extrapolated,
        "Wide": _wide,
    }
)
"""What gives a range, by the name of the method."""
