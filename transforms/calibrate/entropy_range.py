"""Clipping a histogram where it loses the least information: the entropy method of int8 calibration.

S. Migacz, "8-bit Inference with TensorRT", GPU Technology Conference 2017.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from transforms.calibrate.histogram import Histogram, fold

_CANDIDATES = 128  # limits that are tried, in equal ratios
_LEAST = 1e-4  # probability of a bin that the levels miss, as a share of one number's


def clip_by_entropy(histogram: Histogram, levels: int, *, symmetric: bool) -> tuple[float, float]:
    """Return the range whose distribution, in ``levels`` levels, diverges least from the one it clips.

    Tried are ranges [-t, t] of at least one bin per level. What lies outside counts at the ends of the range.
    Symmetric ranges look at magnitudes, in half the levels. A format with as many levels as the histogram has
    bins in use gets the range of the whole histogram.
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
    """Return the Kullback-Leibler divergence of the clipped histogram from its form in a few levels.

    Each level spreads its numbers evenly over those of its bins that hold any.
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
