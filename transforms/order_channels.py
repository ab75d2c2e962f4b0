"""An order of channels in which large weights are not adjacent terms of a sum."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array
from ops.pair_sums import LARGEST_PAIR
from transforms.channels.channel_groups import ChannelGroup, channel_groups
from transforms.channels.per_channel import PerChannel
from transforms.graph.constants import load
from transforms.graph.selection import Choice, Exclusion, resolve

_HIGHEST = 127
_GROWN = 1.2
"""Factor of scales at which pairs count as too wide: the average growth of scales with bounded pairs
(:func:`ops.pair_sums.paired_scale`)."""

_MOST = 1 << 24
"""The most weights of a layer that are compared between channels: of larger layers, only some outputs."""

_TOGETHER = 1 << 10
"""Channels among which pairs are exchanged; their costs form a square matrix of this size."""

_LEAST_GAIN = 0.9
"""Fraction of the cost that a new order has to stay below to be worth a change."""


def order_channels(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Permute channels between layers so that sums of 8 bits saturate less; return how many groups changed.

    Kernels without VNNI add the products of int8 weights for channels 2 i and 2 i + 1 in 16 bits
    (:mod:`ops.pair_sums`). Channels of pairs are exchanged as long as that lowers the cost: over the pairs of
    weights v and w in all layers that read the channels, the sum of (abs(v + w) - 128 s)^2 where abs(v + w)
    is larger, with the scale s of each output. The outputs of the model stay the same, up to the order of
    sums; tensors between the layers have their channels in another order. A second run changes nothing.

    Does nothing to groups of channels that :func:`transforms.channels.channel_groups.channel_groups` leaves
    out, to an odd number of channels, and to layers whose kernels do not add in pairs. More channels are
    ordered in runs of 1,024 adjacent ones.
    """
    groups = channel_groups(graph, resolve(exclude, graph, nodes))
    return sum(_reorder(group) for group in groups if group.channels % 2 == 0)


def _reorder(group: ChannelGroup) -> bool:
    """Permute the channels of a group to a better order; return whether there is one."""
    firsts = range(0, group.channels, _TOGETHER)
    slices = [slice(first, min(first + _TOGETHER, group.channels)) for first in firsts]
    costs = [np.zeros((channels.stop - channels.start,) * 2) for channels in slices]
    for held in group.consuming:
        weights = _by_channel(held)
        limits = LARGEST_PAIR * _GROWN / _HIGHEST * np.abs(weights).max((0, 2), keepdims=True)
        for channels, total in zip(slices, costs, strict=True):
            total += _costs(weights[channels], limits)
    before = [np.arange(len(total)).reshape(-1, 2) for total in costs]
    after = [_exchanged(total, pairs) for total, pairs in zip(costs, before, strict=True)]
    had, has = (sum(map(_cost, costs, pairs)) for pairs in (before, after))
    if not has < _LEAST_GAIN * had:
        return False
    order = [channels.start + pairs.reshape(-1) for channels, pairs in zip(slices, after, strict=True)]
    group.permute(np.concatenate(order))
    return True


def _by_channel(held: PerChannel) -> Float32Array:
    """Return the weights of a layer as [channels, outputs, positions], for some outputs of a large one."""
    weight = held.rows(np.asarray(load(held.constant), np.float32))
    by_output = weight.reshape(*weight.shape[:2], -1)
    step = -(-by_output.shape[1] // max(1, _MOST // (by_output[:, 0].size * len(by_output))))
    return by_output[:, ::step]


def _costs(weights: Float32Array, limits: Float32Array) -> Float64Array:
    """Return the cost of each pair of channels in a layer with weights [channels, outputs, positions].

    ``limits``: the largest sums without cost, [1, outputs, 1].
    """
    costs = np.zeros((len(weights), len(weights)))
    for place, weight in enumerate(weights):
        beyond = np.abs(weight + weights[place:]) - limits
        costs[place, place:] = np.square(np.maximum(beyond, 0), dtype=np.float64).sum((1, 2))
    return costs + costs.T


def _cost(costs: Float64Array, pairs: NDArray[np.int64]) -> float:
    return float(costs[pairs[:, 0], pairs[:, 1]].sum())


def _exchanged(costs: Float64Array, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs that no exchange of two channels between two pairs improves (2-opt)."""
    pairs, changed = pairs.copy(), True
    while changed:
        changed = False
        for place, (first, second) in enumerate(pairs):
            columns = pairs.T
            now = costs[first, second] + costs[columns[0], columns[1]]
            swaps = [costs[first, columns[i]] + costs[second, columns[1 - i]] for i in (0, 1)]
            gains = now - np.array(swaps)
            gains[:, place] = 0
            which, other = np.unravel_index(gains.argmax(), gains.shape)
            if gains[which, other] > 1e-9 * now[other]:
                partner, left_over = pairs[other][which], pairs[other][1 - which]
                pairs[place], pairs[other] = (first, partner), (second, left_over)
                changed = True
    return pairs
