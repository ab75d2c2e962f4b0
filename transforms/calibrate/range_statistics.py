"""Statistics of one tensor over samples, of a size that does not depend on how many samples there are.

Written as JSON they are exact: numbers as Python writes them, arrays as compressed bytes.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.channel_sums import channel_sums
from transforms.calibrate.histogram import BINS, Histogram
from transforms.calibrate.sample_ends import SampleEnds

_LARGEST_ARRAY = 1 << 28  # bytes: a longer one is not a statistic of ours
_SLICE = 1 << 22  # numbers that are looked at together: copies of the finite ones are small


@dataclass
class Moments:
    """Sums per channel of a tensor, [channels], over ``count`` numbers in each channel."""

    axis: int
    total: NDArray[np.float64] | None = None
    squares: NDArray[np.float64] | None = None
    count: int = 0

    @property
    def mean_square(self) -> NDArray[np.float64]:
        """The mean of the squares of each channel."""
        assert self.squares is not None and self.count, "asked for only after it was found to be there"
        return self.squares / self.count

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each channel."""
        assert self.total is not None and self.count, "asked for only after it was found to be there"
        return self.total / self.count

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
            for kept, new in zip((self.total, self.squares), channel_sums(x, self.axis), strict=True):
                kept += new
            self.count += x.size // channels

    def merge(self, other: Moments) -> None:
        """Add the sums of another sample; ValueError if it has other channels."""
        if other.total is None or other.squares is None:
            return
        if self.total is None or self.squares is None:
            self.total, self.squares = np.zeros_like(other.total), np.zeros_like(other.squares)
        if len(self.total) != len(other.total):
            raise ValueError(f"{len(other.total)} channels instead of {len(self.total)} in earlier samples")
        self.total += other.total
        self.squares += other.squares
        self.count += other.count


@dataclass
class RangeStats:
    """What is known of a tensor: lowest and highest finite number, and what else was asked for.

    ``average`` holds the moving averages of the lowest and highest number of each sample, ``moments`` those
    along each axis that was asked for. Infinite numbers never count: whatever stands for them has to be the
    end of a range. Nor does NaN; ``has_nan``: whether there was any. ``count``: how many numbers were seen.
    ``ends``: how far those of each sample reach. ``limits``: no number of the tensor is beyond them, in any
    sample.
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
        """Whether no finite number was ever seen."""
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

    def add_array(self, x: NDArray[np.float32], averaging_constant: float) -> None:
        """Add the numbers of a sample; ValueError when they do not fit the moments."""
        add_to_all([self], x, averaging_constant)

    def alike(self) -> RangeStats:
        """Return statistics of the same kinds in which nothing is counted yet."""
        return RangeStats(
            histogram=Histogram() if self.histogram else None,
            moments={axis: Moments(axis) for axis in self.moments},
            limits=self.limits,
        )

    def merge(self, sample: RangeStats, averaging_constant: float) -> None:
        """Add the statistics of the next sample, of the same kinds; ValueError if they do not fit.

        The result is that of adding the sample's numbers themselves, bit for bit.
        """
        self.add_range(sample.low, sample.high, averaging_constant)
        self.count += sample.count
        self.has_nan |= sample.has_nan
        if self.histogram and sample.histogram:
            self.histogram.merge(sample.histogram)
        for axis, moments in sample.moments.items():
            self.moments[axis].merge(moments)


def add_to_all(parts: Sequence[RangeStats], x: NDArray[np.float32], averaging_constant: float) -> None:
    """Add the numbers of a sample to several statistics of one tensor, with moments of the same axes.

    ValueError when they do not fit the moments.
    """
    low, high = _range(x)
    has_nan, is_finite = math.isnan(low), math.isfinite(low) and math.isfinite(high)
    is_finite |= x.size == 0
    if not is_finite:
        low, high = _finite_range(x)
    sums = {axis: Moments(axis) for one in parts for axis in one.moments}
    counted = x if is_finite or not sums else np.where(np.isfinite(x), x, 0)
    for one in parts:
        one.count += x.size
        one.has_nan |= has_nan
        one.add_range(low, high, averaging_constant)
        if one.histogram:
            one.histogram.add(x, low, high, finite=is_finite)
    for axis, moments in sums.items():
        moments.add(counted)
        for one in parts:
            one.moments[axis].merge(moments)


def _finite_range(x: NDArray[np.float32]) -> tuple[float, float]:
    """Return lowest and highest finite number, (inf, -inf) without any, of a piece at a time."""
    numbers = x.reshape(-1)
    pieces = (numbers[i : i + _SLICE] for i in range(0, x.size, _SLICE))
    ranges = [(math.inf, -math.inf), *(_range(piece[np.isfinite(piece)]) for piece in pieces)]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _range(x: NDArray[np.float32]) -> tuple[float, float]:
    return float(x.min(initial=math.inf)), float(x.max(initial=-math.inf))


def encode(observed: RangeStats) -> dict[str, Any]:
    """Return the statistics as what ``json`` can write."""
    result: dict[str, Any] = {"numbers": observed.count}
    if observed.has_nan:
        result["nan"] = True
    if not observed.is_empty:
        result |= {"range": [observed.low, observed.high], "average": observed.average}
        result["ends"] = observed.ends.encode()
    if histogram := observed.histogram:
        result["histogram"] = {"exponent": histogram.exponent, "counts": _pack(histogram.counts)}
    if observed.moments:
        result["moments"] = [_encode_moments(one) for one in observed.moments.values()]
    return result


def _encode_moments(moments: Moments) -> dict[str, Any]:
    sums = {"total": moments.total, "squares": moments.squares}
    packed = {name: None if x is None else _pack(x) for name, x in sums.items()}
    return {"axis": moments.axis, "count": moments.count, **packed}


def decode(entry: dict[str, Any]) -> RangeStats:
    """Return the statistics that ``encode`` made an entry of, or its first version: moments of one axis.

    ValueError, KeyError, TypeError or AttributeError for what it did not make.
    """
    observed = RangeStats(has_nan=entry.get("nan") is True)
    if "range" in entry:
        observed.low, observed.high = (float(end) for end in entry["range"])
        low, high = (float(end) for end in entry["average"])
        observed.average = low, high
        if not -math.inf < observed.low <= observed.high < math.inf:
            raise ValueError(f"range {entry['range']} is none")
        if "ends" in entry:
            observed.ends = SampleEnds.decode(entry["ends"])
    if "histogram" in entry:
        stored = entry["histogram"]
        counts = _unpack(stored["counts"], np.dtype(np.int64))
        if len(counts) != BINS or counts.min() < 0:
            raise ValueError(f"{len(counts)} counts instead of {BINS} that are not negative")
        observed.histogram = Histogram(_in(range(-100, 129), int(stored["exponent"])), counts)
        observed.count = int(counts.sum())
    if "numbers" in entry:
        observed.count = _in(range(1 << 62), int(entry["numbers"]))
    if "moments" in entry:
        stored = entry["moments"]
        each = [_decode_moments(one) for one in ([stored] if isinstance(stored, dict) else stored)]
        observed.moments = {one.axis: one for one in each}
        if len(observed.moments) != len(each):
            raise ValueError("one axis has moments twice")
    return observed


def _decode_moments(stored: dict[str, Any]) -> Moments:
    sums = (stored["total"], stored["squares"])
    total, squares = (None if x is None else _unpack(x, np.dtype(np.float64)) for x in sums)
    return Moments(int(stored["axis"]), total, squares, int(stored["count"]))


def _in(legal: range, number: int) -> int:
    if number not in legal:
        raise ValueError(f"{number} is not in {legal.start} ... {legal.stop - 1}")
    return number


def _pack(array: NDArray[Any]) -> str:
    little = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), 1)).decode()


def _unpack(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array, without ever making more of the text than could be right."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text), _LARGEST_ARRAY)
    except zlib.error as error:
        raise ValueError(f"an array of it is broken: {error}") from error
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)
