"""Statistics of a tensor as JSON, exactly: numbers as Python writes them, arrays as compressed bytes."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.calibrate.histogram import BINS, Histogram
from transforms.calibrate.range_statistics import Moments, RangeStats

_LARGEST_ARRAY = 1 << 28  # bytes: what is longer is no statistic of ours


def encode(observed: RangeStats) -> dict[str, Any]:
    """Return the statistics as what ``json`` can write."""
    result: dict[str, Any] = {}
    if not observed.is_empty:
        result |= {"range": [observed.low, observed.high], "average": observed.average}
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
    observed = RangeStats()
    if "range" in entry:
        observed.low, observed.high = (float(end) for end in entry["range"])
        low, high = (float(end) for end in entry["average"])
        observed.average = low, high
        if not -math.inf < observed.low <= observed.high < math.inf:
            raise ValueError(f"range {entry['range']} is none")
    if "histogram" in entry:
        stored = entry["histogram"]
        counts = _unpack(stored["counts"], np.dtype(np.int64))
        if len(counts) != BINS or counts.min() < 0:
            raise ValueError(f"{len(counts)} counts instead of {BINS} that are not negative")
        observed.histogram = Histogram(_in(range(-100, 129), int(stored["exponent"])), counts)
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
