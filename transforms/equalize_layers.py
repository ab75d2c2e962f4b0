"""Cross-layer range equalization (Nagel et al. 2019, arXiv 1906.04721)."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.layer_pairs import LayerPair, PairFinder
from transforms.channels.scaled_layer import Exponents, Ranges
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, resolve

_SWEEPS = 1000  # chains of layers of real models need about ten
_CENTRED = 20  # sweeps in which medians may rise
_NEAR = 1.0001  # powers of two from the median: one, plus the rounding of logarithms
_LEAST, _LARGEST = 2.0**-60, 2.0**60  # range of a channel to scale: far from underflow and overflow


def equalize_layers(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Scale the channels between layers so that the weights of both sides have similar ranges; return how
    many pairs of layers were scaled.

    A channel of the first layer is divided by the power of two next to ``sqrt(r1 / r2)``, where r1
    and r2 are its largest weights in the first and the second layer, and the second layer's weights for it
    are multiplied by the same; in turn for all pairs until nothing changes. The ratio is taken relative to
    that of the median channel: moving all channels together would equalize nothing, and would separate them
    from their biases. Powers of two make that exact: every number that the model computes stays the same, or
    the same times a power of two in between, as long as none becomes subnormal or infinite. The offset (bias)
    of a channel grows at most to the largest in its layer, since all share one scale.

    Does nothing to channels with zero weights on one side, if within each pair of a graph the ratios differ
    by a factor of four at most, and if :class:`transforms.channels.layer_pairs.PairFinder` finds no pair:
    across a Clip, whose bounds are the same for all channels, across masks that are added, at sums of layers,
    at tensors with several consumers, and with weights that are used elsewhere.
    """
    finder = PairFinder(graph, resolve(exclude, graph, nodes))
    return sum(_equalize(finder.pairs(inner)) for inner in walk.graphs(graph))


def _equalize(pairs: list[LayerPair]) -> int:
    if all(_is_alike(pair) for pair in pairs):
        return 0
    _settle(pairs)
    for pair in pairs:
        pair.apply()
    for layer in {id(layer): layer for pair in pairs for layer in (pair.first, pair.second)}.values():
        layer.apply()
    return sum(bool(pair.first.out_shift.any()) for pair in pairs)


def _is_alike(pair: LayerPair) -> bool:
    """Return whether one ratio is close to all channels, except a minority below that cannot grow.

    It is after :func:`_settle`, whatever the median is by then: a second run changes nothing.
    """
    ratios = _ratios(pair)
    live = np.isfinite(ratios)
    if not live.any():
        return True
    low = ratios < ratios[live].max() - 2 * _NEAR
    return 2 * low.sum() <= live.sum() and not (_least_shift(pair)[low] < 0).any()


def _settle(pairs: list[LayerPair]) -> None:
    """Balance all pairs in turn until each channel is near the median of its pair, or cannot grow.

    With fixed medians that ends, since a step lowers the largest of the weights that it changes, relative to
    the medians, and products of weights along a path through the layers stay. Medians that move with each
    step can cycle: late ones only fall.
    """
    medians = [0.0] * len(pairs)
    for sweep in range(_SWEEPS):
        moved = False
        for i, pair in enumerate(pairs):
            ratios = _ratios(pair)
            live = np.isfinite(ratios)
            if live.any():
                median = float(np.median(ratios[live]))
                medians[i] = median if sweep < _CENTRED else min(median, medians[i])
            moved |= _balance(pair, np.where(live, ratios - medians[i], 0))
        if not moved:
            break


def _balance(pair: LayerPair, distances: Ranges) -> bool:
    """Halve the distance of each channel from the median, in powers of two; return whether any moved."""
    shift = np.where(np.abs(distances) > _NEAR, np.rint(distances / 2), 0).astype(np.int64)
    shift = np.maximum(shift, np.minimum(_least_shift(pair), 0))
    pair.first.out_shift += shift
    pair.second.in_shift += np.repeat(shift, pair.repeat)
    return bool(shift.any())


def _ratios(pair: LayerPair) -> Ranges:
    """Return the binary logarithm of each channel's range in the first layer over that in the second.

    NaN if one of them is out of the limits, or there is none.
    """
    made = pair.first.out_ranges()
    read = pair.second.in_ranges().reshape(-1, pair.repeat).max(axis=1)
    live = (np.minimum(made, read) >= _LEAST) & (np.maximum(made, read) <= _LARGEST)
    return np.log2(np.where(live, made, np.nan)) - np.log2(np.where(live, read, np.nan))


def _least_shift(pair: LayerPair) -> Exponents:
    """Return the shift that keeps the offset of each channel within the largest of the layer."""
    offsets = np.zeros(len(pair.first.out_shift))
    for companion in pair.companions:
        offsets += companion.magnitudes() if companion.is_offset else 0
    now = np.ldexp(offsets, -pair.first.out_shift) / max(offsets.max(), _LEAST)
    return np.ceil(np.log2(np.maximum(now, _LEAST))).astype(np.int64)
