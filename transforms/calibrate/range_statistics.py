"""Statistics of one tensor over samples, of a size that does not depend on how many samples there are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from transforms.calibrate.histogram import Histogram


@dataclass
class Moments:
    """Sums per channel of a tensor, [channels], over ``count`` numbers in each channel."""

    axis: int
    total: NDArray[np.float64] | None = None
    squares: NDArray[np.float64] | None = None
    count: int = 0

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each channel."""
        return self._average(self.total)

    @property
    def mean_square(self) -> NDArray[np.float64]:
        """The mean of the squares of each channel."""
        return self._average(self.squares)

    def _average(self, sums: NDArray[np.float64] | None) -> NDArray[np.float64]:
        assert sums is not None and self.count, "asked for only after it was found to be there"
        return sums / self.count

    def add(self, x: NDArray[np.float32]) -> None:
        """Add the numbers of an array; ValueError when it has not the axis, or other channels than before."""
        if not -x.ndim <= self.axis < x.ndim:
            raise ValueError(f"axis {self.axis} is out of range for rank {x.ndim}")
        channels = x.shape[self.axis]
        if self.total is None or self.squares is None:
            self.total, self.squares = np.zeros(channels), np.zeros(channels)
        if len(self.total) != channels:
            raise ValueError(f"{channels} channels instead of {len(self.total)} in earlier samples")
        if x.size:
            others = tuple(i for i in range(x.ndim) if i != self.axis % x.ndim)
            self.total += x.sum(axis=others, dtype=np.float64)
            self.squares += np.square(x, dtype=np.float64).sum(axis=others)
            self.count += x.size // channels


@dataclass
class RangeStats:
    """What is known of a tensor: lowest and highest finite number, and what else was asked for.

    ``average`` holds the moving averages of the lowest and highest number of each sample, ``moments`` those
    along each axis that was asked for. Infinite numbers never count: whatever stands for them has to be the
    end of a range.
    """

    low: float = math.inf
    high: float = -math.inf
    average: tuple[float, float] | None = None
    histogram: Histogram | None = None
    moments: dict[int, Moments] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no number was ever seen."""
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

    def add_array(self, x: NDArray[np.float32], averaging_constant: float) -> None:
        """Add the numbers of a sample; ValueError when there is NaN among them."""
        low, high = _range(x)
        if math.isnan(low):
            raise ValueError("it holds NaN")
        if math.isinf(low) or math.isinf(high):
            finite = np.isfinite(x)
            low, high = _range(x[finite])
        else:
            finite = None
        self.add_range(low, high, averaging_constant)
        if self.histogram:
            self.histogram.add(x if finite is None else x[finite], low, high)
        counted = x if finite is None or not self.moments else np.where(finite, x, 0)
        for moments in self.moments.values():
            moments.add(counted)


def _range(x: NDArray[np.float32]) -> tuple[float, float]:
    return float(x.min(initial=math.inf)), float(x.max(initial=-math.inf))
