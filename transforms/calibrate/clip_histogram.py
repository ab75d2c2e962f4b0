"""Clip a histogram to the range of an integer format with the least error, or loss of information.

The latter is the entropy method (S. Migacz, "8-bit Inference with TensorRT", GTC 2017).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ops.powers_of_two import HALVINGS, ceil_power
from transforms.calibrate.histogram import Histogram, fold

_COARSE = np.geomspace(1 / 64, 1, 25)  # shares of the full range to try first
_FINE = np.geomspace(2**-0.25, 2**0.25, 13)  # then around the best of these
_BELOW = 1 - 2.0**-40  # a scale recomputed from the range stays below the power of two
_MERGED = 4  # bins to merge, which loses nothing compared with a step of 8 bits
_CANDIDATES = 128  # limits to try in the entropy method, in equal ratios
_LEAST = 1e-4  # probability of a bin that the levels miss, relative to that of one number

Grids = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]  # scale, lowest, highest integer


def clip_by_error(
    histogram: Histogram, extremes: tuple[float, float], levels: int, *, symmetric: bool
) -> tuple[float, float]:
    """Return the range, within the extremes, whose grid of ``levels`` numbers has the least expected error.

    The error counts both clipping and rounding, for numbers spread evenly within each bin. Ends are shrunk
    together to between 1/64 and all of the full range and then, for an asymmetric range, each end in turn.
    An end on the near side of zero stays, since ranges include zero.
    """
    low, high = min(extremes[0], 0.0), max(extremes[1], 0.0)
    if not histogram.counts_but_zeros.any():
        return extremes
    error = _error_function(histogram, extremes)
    make = _symmetric_grids if symmetric else _grids

    def _best(lows: NDArray[np.float64], highs: NDArray[np.float64]) -> tuple[float, float]:
        ends = np.empty(len(lows), np.complex128)  # sorted by real, then by imaginary part
        ends.real, ends.imag = np.maximum(lows, low), -np.minimum(highs, high)
        widest_first = np.unique(ends)
        lows, highs = widest_first.real, -widest_first.imag
        i = int(np.argmin(error(make(lows, highs, levels)))) if len(lows) > 1 else 0
        return float(lows[i]), float(highs[i])

    clipped = _best(low * _COARSE, high * _COARSE)
    clipped = _best(clipped[0] * _FINE, clipped[1] * _FINE)
    if not symmetric:
        still = np.ones_like(_FINE)
        for _ in range(2):
            clipped = _best(clipped[0] * still, clipped[1] * _FINE)
            clipped = _best(clipped[0] * _FINE, clipped[1] * still)
    return clipped


def clip_to_power(
    histogram: Histogram, extremes: tuple[float, float], levels: int, *, symmetric: bool
) -> tuple[float, float]:
    """Return the range whose scale is the power of two with the least expected error.

    The error is that of :func:`clip_by_error`. Both ends are shrunk together to the range of a scale that is
    the least power of two for the extremes, or a smaller one.
    """
    low, high = min(extremes[0], 0.0), max(extremes[1], 0.0)
    if not histogram.counts_but_zeros.any():
        return extremes
    make = _symmetric_grids if symmetric else _grids
    full = float(make(np.array([low]), np.array([high]), levels)[0][0])
    scales = ceil_power(full).astype(np.float64) * HALVINGS
    shares = np.minimum(scales / full * _BELOW, 1.0)
    _, lowest, highest = make(low * shares, high * shares, levels)
    if not symmetric:
        lowest = np.rint(low * shares / scales)
        highest = lowest + (levels - 1)
    best = int(np.argmin(_error_function(histogram, extremes)((scales, lowest, highest))))
    return float(low * shares[best]), float(high * shares[best])


def _error_function(
    histogram: Histogram, extremes: tuple[float, float]
) -> Callable[[Grids], NDArray[np.float64]]:
    """Return a function for the sum of squared errors of the counted numbers on each of several grids.

    The integral of (v - k)^2, where k is the integer closest to v, is k / 12 + (v - k)^3 / 3 from 0 to v,
    and remains so beyond the last k, where v is clipped. So the error within a bin is exact without samples.
    A bin that begins at the highest number has no width: it only counts that number, (v - k)^2 each.
    """
    counts = histogram.counts_but_zeros.reshape(-1, _MERGED).sum(axis=1)
    used = np.flatnonzero(counts)
    counts = counts[used[0] : used[-1] + 1]
    edges = np.clip(histogram.edges[::_MERGED][used[0] : used[-1] + 2], *extremes)
    widths = np.diff(edges)
    weights = np.divide(counts, widths, out=np.zeros(len(counts)), where=widths > 0)
    highest_counts = counts[-1] if widths[-1] == 0 else 0

    scratch = np.empty((3, len(_COARSE), len(edges)))  # pages are allocated once, not for every operation

    def _error(grids: Grids) -> NDArray[np.float64]:
        scale, lowest, highest = (figure[:, None] for figure in grids)
        v, k, integral = scratch[:, : len(scale)]
        np.divide(edges, scale, out=v)
        np.rint(v, out=k)
        np.maximum(k, lowest, out=k)
        np.minimum(k, highest, out=k)
        v -= k
        np.multiply(v, v, out=integral)
        at_highest = highest_counts * integral[:, -1] * grids[0] ** 2
        integral *= v
        integral /= 3
        k /= 12
        integral += k
        within = np.subtract(integral[:, 1:], integral[:, :-1], out=v[:, 1:]) @ weights
        return within * grids[0] ** 3 + at_highest

    return _error


def _grids(low: NDArray[np.float64], high: NDArray[np.float64], levels: int) -> Grids:
    scale = np.maximum(high - low, np.finfo(np.float32).tiny) / (levels - 1)
    lowest = np.rint(low / scale)
    return scale, lowest, lowest + (levels - 1)


def _symmetric_grids(low: NDArray[np.float64], high: NDArray[np.float64], levels: int) -> Grids:
    highest = levels / 2 - 1
    scale = np.maximum(np.maximum(-low, high), np.finfo(np.float32).tiny) / highest
    return scale, np.full_like(scale, -highest - 1), np.full_like(scale, highest)


def clip_by_entropy(histogram: Histogram, levels: int, *, symmetric: bool) -> tuple[float, float]:
    """Return the range whose distribution, in ``levels`` levels, diverges least from the unclipped one.

    Candidates are ranges [-t, t] of at least one bin per level. Numbers outside count at the ends of the
    range. Symmetric ranges use magnitudes, in half the levels. A format with as many levels as the histogram
    has non-empty bins gets the range of the whole histogram.
    """
    counts, centre = histogram.counts_but_zeros, len(histogram.counts) // 2
    if symmetric:
        counts, centre, levels = fold(counts), 0, levels // 2
    if not counts.any():
        return -histogram.bound, histogram.bound
    used = np.flatnonzero(counts)
    first, end = min(int(used[0]), centre), max(int(used[-1]) + 1, centre)
    if end - first <= levels:
        return -histogram.bound, histogram.bound
    widest = max(end - centre, centre - first)
    tried = np.unique(np.geomspace(1, widest, _CANDIDATES).round().astype(int))
    windows = [(max(first, centre - i), min(end, centre + i), i) for i in tried]
    windows = [window for window in windows if window[1] - window[0] >= levels]
    losses = [_divergence(counts, start, stop, levels) for start, stop, _ in windows]
    limit = float(windows[int(np.argmin(losses))][2] * histogram.bin_width)
    return -limit, limit


def _divergence(counts: NDArray[np.int64], start: int, stop: int, levels: int) -> float:
    """Return the Kullback-Leibler divergence of the clipped histogram from its version in a few levels.

    Each level spreads its numbers evenly over its non-empty bins.
    """
    inside = counts[start:stop].astype(np.float64)
    p = inside.copy()
    p[0] += counts[:start].sum()
    p[-1] += counts[stop:].sum()
    level = np.arange(stop - start) * levels // (stop - start)
    sums = np.bincount(level, inside, levels)
    filled = np.bincount(level, inside > 0, levels)
    q = np.where(inside > 0, (sums / np.maximum(filled, 1))[level], 0)
    p /= p.sum()
    q = np.maximum(q / max(q.sum(), 1), _LEAST / counts.sum())
    seen = p > 0
    return float(np.sum(p[seen] * np.log(p[seen] / q[seen])))
