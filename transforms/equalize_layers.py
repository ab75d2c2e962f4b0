"""Cross-layer range equalization (Nagel et al. 2019, arXiv 1906.04721)."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.edits import scale
from transforms.channels.per_channel import Exponents, PerChannel, Ranges
from transforms.channels.sites import Site, SiteFinder
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, resolve

_SWEEPS = 1000  # chains of layers of real models need about ten
_CENTRED = 20  # sweeps in which medians may rise
_NEAR = 1.0001  # powers of two from the median: one, plus the rounding of logarithms
_LEAST, _LARGEST = 2.0**-60, 2.0**60  # range of a channel to scale: far from underflow and overflow


def equalize_layers(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Scale channels between layers so that their weights have similar ranges; return how many pairs changed.

    A channel of the first layer is divided by the power of two nearest to ``sqrt(r1 / r2)``, where r1 and r2
    are its largest weights in the first and the second layer, and the second layer's weights for it are
    multiplied by the same; in turn for all pairs until nothing changes. The ratio is taken relative to that
    of the median channel: scaling all channels together would equalize nothing, and would change them
    relative to their biases. Powers of two make this exact: every number that the model computes stays the
    same, or is multiplied by a power of two between the layers, as long as none becomes subnormal or
    infinite. The offset (bias) of a channel grows at most to the largest in its layer, since all share one
    scale.

    Does nothing to channels with zero weights on one side, if the ratios of each pair of a graph differ by at
    most a factor of four, and where :class:`transforms.channels.sites.SiteFinder` finds no pair: across a
    Clip, whose bounds are the same for all channels, across added masks, at sums of layers, at tensors with
    several consumers, and with weights that are used elsewhere.
    """
    left, ends = resolve(exclude, graph, nodes), walk.ends(graph)
    return sum(_equalize(SiteFinder(inner, left, ends).pairs()) for inner in walk.graphs(graph))


def _equalize(sites: list[Site]) -> int:
    sides: dict[int, list[PerChannel]] = {}
    for held in (held for site in sites for held in (site.producing[0], site.consuming[0])):
        sides.setdefault(id(held.constant), []).append(held)
    tables = {key: _magnitudes(held) for key, held in sides.items()}
    pairs = [_Pair(site, tables) for site in sites]
    if all(_is_alike(pair) for pair in pairs):
        return 0
    _settle(pairs)
    divided = [change for pair in pairs for change in pair.site.divided(pair.shift)]
    scale([*divided, *((pair.site.consuming[0], pair.shift) for pair in pairs)])
    return sum(bool(pair.shift.any()) for pair in pairs)


def _magnitudes(sides: list[PerChannel]) -> Ranges:
    """Return the largest magnitudes of a weight along the axes of its channels, all others having length 1.

    Only axes that a pair scales are kept: the table of a head would be too large with its outputs.
    """
    values = sides[0].constant.values
    channel_axes = {values.ndim + held.axis for held in sides} | {0 for held in sides if held.groups > 1}
    reduced_axes = tuple(axis for axis in range(values.ndim) if axis not in channel_axes)
    largest = np.maximum(values.max(reduced_axes, keepdims=True), -values.min(reduced_axes, keepdims=True))
    return largest.astype(np.float64)


class _Pair:
    """Two layers, and channels between them that a ``shift`` divides by powers of two.

    ``tables``: the magnitudes of all weights by ``id``, with the shifts of the pairs on both sides.
    """

    def __init__(self, site: Site, tables: dict[int, Ranges]) -> None:
        """Start without a shift."""
        self.site, self.shift = site, np.zeros(site.channels, np.int64)
        self._weights = [(held, tables[id(held.constant)]) for held in (site.producing[0], site.consuming[0])]
        added = [held.ranges(held.constant.values) for held in site.producing if held.is_offset]
        self._offsets = sum(added, np.zeros(site.channels))

    def ratios(self) -> Ranges:
        """Return the binary logarithm of each channel's range in the first layer over that in the second.

        NaN if one of them is out of the limits, or there is none. After a Flatten several inputs are one
        channel.
        """
        of_inputs = [held.ranges(table).reshape(self.site.channels, -1) for held, table in self._weights]
        ranges = np.array([some.max(axis=1) for some in of_inputs])
        ranges[:, (ranges.min(axis=0) < _LEAST) | (ranges.max(axis=0) > _LARGEST)] = np.nan
        first, second = np.log2(ranges)
        return first - second

    def least_shift(self) -> Exponents:
        """Return the shift that keeps the offset of each channel within the largest of the layer."""
        now = np.ldexp(self._offsets, -self.shift) / max(self._offsets.max(), _LEAST)
        return np.ceil(np.log2(np.maximum(now, _LEAST))).astype(np.int64)

    def scale(self, shift: Exponents) -> None:
        """Divide the channels between the layers by further powers of two."""
        self.shift += shift
        for (held, table), exponents in zip(self._weights, (-shift, shift), strict=True):
            np.ldexp(table, held.laid(exponents), out=table)


def _is_alike(pair: _Pair) -> bool:
    """Return whether the ratios of all channels are close, except a minority of low ones that cannot grow.

    This is the case after :func:`_settle`, whatever the median is then: a second run changes nothing.
    """
    ratios = pair.ratios()
    live = np.isfinite(ratios)
    if not live.any():
        return True
    low = ratios < ratios[live].max() - 2 * _NEAR
    return 2 * low.sum() <= live.sum() and not (pair.least_shift()[low] < 0).any()


def _settle(pairs: list[_Pair]) -> None:
    """Balance all pairs in turn until each channel is near the median of its pair, or cannot grow.

    With fixed medians this terminates: a step lowers the largest of the weights that it changes, relative to
    the medians, and the product of weights along a path through the layers is preserved. Medians that change
    in each step could cycle; therefore they can only fall after the first sweeps.
    """
    medians = [0.0] * len(pairs)
    for sweep in range(_SWEEPS):
        moved = False
        for i, pair in enumerate(pairs):
            ratios = pair.ratios()
            live = np.isfinite(ratios)
            if live.any():
                median = float(np.median(ratios[live]))
                medians[i] = median if sweep < _CENTRED else min(median, medians[i])
            moved |= _balance(pair, np.where(live, ratios - medians[i], 0))
        if not moved:
            break


def _balance(pair: _Pair, distances: Ranges) -> bool:
    """Halve the distance of each channel from the median, in powers of two; return whether any moved."""
    shift = np.where(np.abs(distances) > _NEAR, np.rint(distances / 2), 0).astype(np.int64)
    shift = np.maximum(shift, np.minimum(pair.least_shift(), 0))
    pair.scale(shift)
    return bool(shift.any())
