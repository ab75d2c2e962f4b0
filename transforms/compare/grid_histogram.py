"""Histograms of a tensor before and after quantization, and a close-up of its grid."""

from __future__ import annotations

import numpy as np

_BINS = 96
_ZOOM_BINS = 72
_ZOOM_REACH = 10
"""Grid values on either side of the close-up's centre."""
_ZOOM_QUANTILE = 0.75
"""Quantile of magnitudes at the centre: the finest values of a float grid are too dense to see."""
_FINEST = 2.0**-20
"""Share of a large number that is shown on either side: float64 still separates bins of that width."""
_SLICE = 1 << 20
"""Values that are counted at a time, in float64: 8 MiB."""


class GridHistogram:
    """Counts of float values (``original``) and quantized values (``rounded``) over fixed ``edges``.

    The close-up has ``zoom_edges`` around some ten neighbours of a typical value of the first arrays added,
    ``zoom_original`` counts, and in ``zoom_grid`` the quantized values that occur there with their counts.
    Memory does not grow with the number of arrays: a grid too dense for the window is dropped.
    """

    def __init__(self, low: float, high: float) -> None:
        """Take the range of the values to count; values outside go to the outermost bins."""
        if not low < high:
            low, high = low - _margin(low), low + _margin(low)
        self.edges = np.linspace(low, high, _BINS + 1)
        self.original = np.zeros(_BINS, np.int64)
        self.rounded = np.zeros(_BINS, np.int64)
        self.zoom_edges: np.ndarray | None = None
        self.zoom_original = np.zeros(_ZOOM_BINS, np.int64)
        self.zoom_grid: dict[float, int] = {}

    def add(self, original: np.ndarray, rounded: np.ndarray) -> None:
        """Add the values of one sample; NaN and infinities are left out.

        The close-up window of a large array is chosen by its first values.
        """
        for start in range(0, original.size, _SLICE):
            part = slice(start, start + _SLICE)
            self._add(original.reshape(-1)[part], rounded.reshape(-1)[part])

    def _add(self, original: np.ndarray, rounded: np.ndarray) -> None:
        x, y = _finite(original), _finite(rounded)
        if self.zoom_edges is None and y.size:
            self.zoom_edges = np.linspace(*_window(y), _ZOOM_BINS + 1)
        self.original += _counts(x, self.edges)
        self.rounded += _counts(y, self.edges)
        if self.zoom_edges is not None:
            self._add_zoom(x, y, self.zoom_edges)

    def _add_zoom(self, x: np.ndarray, y: np.ndarray, edges: np.ndarray) -> None:
        self.zoom_original += np.histogram(x, edges)[0]
        values, counts = np.unique(y[(y >= edges[0]) & (y <= edges[-1])], return_counts=True)
        for value, count in zip(values[:_BINS].tolist(), counts.tolist(), strict=False):
            if value in self.zoom_grid or len(self.zoom_grid) < _BINS:
                self.zoom_grid[value] = self.zoom_grid.get(value, 0) + count


def _finite(array: np.ndarray) -> np.ndarray:
    flat = np.asarray(array, np.float64).reshape(-1)
    return flat[np.isfinite(flat)]


def _counts(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]


def _margin(value: float) -> float:
    """Return how much is shown on either side of a single number: 0.5, or what float64 can separate."""
    return max(0.5, abs(float(value)) * _FINEST)


def _window(values: np.ndarray) -> tuple[float, float]:
    """Return the range of some grid values around a typical one, plus half a step on either side."""
    grid = np.unique(values)
    sizes = np.abs(values[values != 0])
    typical = np.quantile(sizes, _ZOOM_QUANTILE) if sizes.size else 0.0
    centre = int(np.searchsorted(grid, typical if typical <= grid[-1] else -typical))
    near = grid[max(0, centre - _ZOOM_REACH) : centre + _ZOOM_REACH + 1]
    margin = 0.5 * (near[-1] - near[0]) / max(1, near.size - 1) or _margin(near[0])
    return float(near[0] - margin), float(near[-1] + margin)
