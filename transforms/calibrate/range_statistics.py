"""Statistics of one tensor over samples, of a size independent of the number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ops.channel_sums import channel_sums
from transforms.calibrate.histogram import Histogram

LOW, HIGH, MAGNITUDE = range(3)
"""The extent of a sample below zero, above zero, and the larger of both."""

_EULER = 0.5772156649
_ALIKE = float(np.finfo(np.float32).eps)  # of the mean
_DEVIATION = math.pi / math.sqrt(6)  # of Gumbel's distribution, in units of its scale
_SLICE = 1 << 22  # numbers to process at a time: copies of the finite ones are small


@dataclass
class Moments:
    """Channel sums of a tensor over ``count`` numbers each: ``sums`` [2, channels] of numbers and squares."""

    axis: int
    sums: NDArray[np.float64] | None = None
    count: int = 0

    @property
    def means(self) -> NDArray[np.float64]:
        """The means of each channel, [2, channels]: of numbers and of their squares."""
        assert self.sums is not None and self.count, "asked for only after it was found to be there"
        return self.sums / self.count

    def add(self, x: NDArray[np.float32]) -> None:
        """Add the numbers of an array; ValueError if it lacks the axis or has other channels than before."""
        if not -x.ndim <= self.axis < x.ndim:
            raise ValueError(f"axis {self.axis} is out of range for rank {x.ndim}")
        channels = x.shape[self.axis]
        sums = np.array(channel_sums(x, self.axis)) if x.size else np.zeros((2, channels))
        self.merge(Moments(self.axis, sums, x.size // max(channels, 1)))

    def merge(self, other: Moments) -> None:
        """Add the sums of another sample; ValueError if it has other channels."""
        if other.sums is None:
            return
        known = np.zeros_like(other.sums) if self.sums is None else self.sums
        if known.shape != other.sums.shape:
            channels = other.sums.shape[1], known.shape[1]
            raise ValueError(f"{channels[0]} channels instead of {channels[1]} in earlier samples")
        self.sums = known + other.sums
        self.count += other.count


@dataclass
class SampleEnds:
    """Sums of the extents of ``count`` samples: ``total`` [3] and ``squares`` [3]."""

    count: int = 0
    total: list[float] = field(default_factory=lambda: [0.0] * 3)
    squares: list[float] = field(default_factory=lambda: [0.0] * 3)

    def add(self, low: float, high: float) -> None:
        """Add the lowest and the highest number of a sample."""
        below, above = max(-low, 0.0), max(high, 0.0)
        self.count += 1
        for end, reach in enumerate((below, above, max(below, above))):
            self.total[end] += reach
            self.squares[end] += reach * reach

    def merge(self, other: SampleEnds) -> None:
        """Add the sums of other samples."""
        self.count += other.count
        self.total = [one + more for one, more in zip(self.total, other.total, strict=True)]
        self.squares = [one + more for one, more in zip(self.squares, other.squares, strict=True)]

    def beyond(self, end: int) -> tuple[float, float] | None:
        """Return location and scale of Gumbel's distribution of sample extents; None if all are alike.

        The largest numbers of samples have this distribution, whatever that of their numbers is, unless its
        tail is heavy or bounded (Fisher and Tippett 1928; Gumbel, Statistics of Extremes, 1958, section
        5.2). Location and scale are estimated from mean and deviation.
        """
        if self.count < 2:
            return None
        mean = self.total[end] / self.count
        variance = (self.squares[end] - mean * self.total[end]) / (self.count - 1)
        if variance <= (_ALIKE * mean) ** 2:
            return None
        scale = math.sqrt(variance) / _DEVIATION
        return mean - _EULER * scale, scale


@dataclass
class RangeStats:
    """Statistics of a tensor: lowest and highest finite number, and others as requested.

    ``average`` holds the moving averages of the lowest and highest number of each sample, ``moments`` those
    along each requested axis. Infinities never count: whatever represents them has to be the end of a range.
    Nor does NaN; ``has_nan``: whether there was any. ``count``: the number of values seen. ``ends``: the
    extents of samples. ``limits``: bounds on the tensor's values in any sample.
    """

    low: float = math.inf
    high: float = -math.inf
    average: tuple[float, float] | None = None
    histogram: Histogram | None = None
    moments: dict[int, Moments] = field(default_factory=dict)
    count: int = 0
    ends: SampleEnds = field(default_factory=SampleEnds)
    limits: tuple[float, float] = (-math.inf, math.inf)
    has_nan: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no finite number was seen."""
        return self.low > self.high

    def add_range(self, low: float, high: float, averaging_constant: float) -> None:
        """Add the lowest and highest number of a sample; (inf, -inf) for a sample without numbers."""
        if low > high:
            return
        old_low, old_high = self.average or (low, high)
        self.average = (
            old_low + averaging_constant * (low - old_low),
            old_high + averaging_constant * (high - old_high),
        )
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.ends.add(low, high)

    def alike(self) -> RangeStats:
        """Return empty statistics of the same kinds."""
        return RangeStats(
            histogram=Histogram() if self.histogram else None,
            moments={axis: Moments(axis) for axis in self.moments},
            limits=self.limits,
        )

    def merge(self, sample: RangeStats, averaging_constant: float) -> None:
        """Add the statistics of the next sample, of the same kinds; ValueError if they do not fit.

        The result is the same, bit for bit, as adding the sample's numbers.
        """
        self.add_range(sample.low, sample.high, averaging_constant)
        self.count += sample.count
        self.has_nan |= sample.has_nan
        if self.histogram and sample.histogram:
            self.histogram.merge(sample.histogram)
        for axis, moments in sample.moments.items():
            self.moments[axis].merge(moments)


def joined(parts: Sequence[RangeStats]) -> RangeStats:
    """Return the statistics of the samples of several parts, of the same kinds and the same tensor.

    They equal those of the single samples, except for sums, whose terms have another order, and for moving
    averages, which are the mean of those of the parts.
    """
    total = parts[0].alike()
    for part in parts:
        total.low, total.high = min(total.low, part.low), max(total.high, part.high)
        total.count += part.count
        total.has_nan |= part.has_nan
        total.ends.merge(part.ends)
        if total.histogram and part.histogram:
            total.histogram.merge(part.histogram)
        for axis, moments in part.moments.items():
            total.moments[axis].merge(moments)
    averages = [part.average for part in parts if part.average is not None]
    if averages:
        low, high = np.mean(averages, axis=0).tolist()
        total.average = low, high
    return total


def add_to_all(collectors: Sequence[RangeStats], x: NDArray[np.float32], averaging_constant: float) -> None:
    """Add the numbers of a sample to several statistics of one tensor, with moments along the same axes.

    ValueError if they do not fit the moments.
    """
    low, high = _range(x)
    has_nan, is_finite = math.isnan(low), math.isfinite(low) and math.isfinite(high)
    is_finite |= x.size == 0
    if not is_finite:
        low, high = _finite_range(x)
    sums = {axis: Moments(axis) for collector in collectors for axis in collector.moments}
    counted = x if is_finite or not sums else np.where(np.isfinite(x), x, 0)
    for collector in collectors:
        collector.count += x.size
        collector.has_nan |= has_nan
        collector.add_range(low, high, averaging_constant)
        if collector.histogram:
            collector.histogram.add(x, low, high, finite=is_finite)
    for axis, moments in sums.items():
        moments.add(counted)
        for collector in collectors:
            collector.moments[axis].merge(moments)


def _finite_range(x: NDArray[np.float32]) -> tuple[float, float]:
    """Return lowest and highest finite number of a slice, (inf, -inf) without any."""
    numbers = x.reshape(-1)
    pieces = (numbers[i : i + _SLICE] for i in range(0, x.size, _SLICE))
    ranges = [(math.inf, -math.inf), *(_range(piece[np.isfinite(piece)]) for piece in pieces)]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _range(x: NDArray[np.float32]) -> tuple[float, float]:
    return float(x.min(initial=math.inf)), float(x.max(initial=-math.inf))
