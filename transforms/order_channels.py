"""Channels in an order in which large weights do not meet as neighbours of a sum."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float32Array, Float64Array
from ops.pair_sums import LARGEST_PAIR
from transforms.channels.channel_groups import ChannelGroup, channel_groups
from transforms.graph import dot_products
from transforms.graph.constants import load
from transforms.graph.selection import Choice, Exclusion, resolve

_HIGHEST = 127
_GROWN = 1.2
"""Factor of scales at which pairs are counted as too wide: what bounded pairs let them grow by in the mean
(:func:`ops.pair_sums.paired_scale`)."""

_MOST = 1 << 24
"""Numbers of a layer that are compared with those of other channels: of larger layers, some outputs are."""

_LEAST_GAIN = 0.9
"""Of the cost of an order, from which on another one is not worth a change."""


def order_channels(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Permute channels between layers so that sums of 8 bits saturate less; return how many groups changed.

    Kernels without VNNI add the products of int8 weights for channels 2 i and 2 i + 1 in 16 bits
    (:mod:`ops.pair_sums`). Channels of pairs are exchanged as long as that lowers the cost: over the pairs of
    weights v and w in all layers that read the channels, the sum of (abs(v + w) - 128 s)^2 where abs(v + w)
    is larger, with the scale s of each output. The outputs of the model stay the same, up to the order of
    sums; what lies between layers has its channels in another order. A second run changes nothing.

    Does nothing to groups of channels that :func:`transforms.channels.channel_groups.channel_groups` leaves
    out, to an odd number of channels, and to layers whose kernels do not add in pairs.
    """
    groups = channel_groups(graph, resolve(exclude, graph, nodes))
    return sum(_reorder(group) for group in groups if group.channels % 2 == 0)


def _reorder(group: ChannelGroup) -> bool:
    """Put the channels of a group in a better order; return whether there is one."""
    costs = np.zeros((group.channels, group.channels))
    for node in group.readers:
        costs += _costs(_by_channel(node))
    before = np.arange(group.channels).reshape(-1, 2)
    after = _exchanged(costs, before)
    if not _cost(costs, after) < _LEAST_GAIN * _cost(costs, before):
        return False
    group.permute(after.reshape(-1))
    return True


def _by_channel(node: gs.Node) -> Float32Array:
    """Return the weights of a layer as [channels, numbers], in units of the scales of their outputs."""
    weight = np.asarray(load(node.inputs[1]), np.float32)
    axis = dot_products.sum_axis(node, 1, weight.ndim)
    by_output = np.moveaxis(weight, (axis, 1 - axis), (0, 1)).reshape(
        weight.shape[axis], weight.shape[1 - axis], -1
    )
    taken = max(1, _MOST // (len(weight.reshape(-1)) * by_output.shape[0] // by_output.shape[1]))
    step = -(-by_output.shape[1] // taken)
    return by_output[:, ::step]


def _costs(weights: Float32Array) -> Float64Array:
    """Return what each pair of channels costs in a layer with weights [channels, outputs, places]."""
    limits = LARGEST_PAIR * _GROWN / _HIGHEST * np.abs(weights).max((0, 2), keepdims=True)
    costs = np.zeros((len(weights), len(weights)))
    for place, own in enumerate(weights):
        beyond = np.abs(own + weights[place:]) - limits
        costs[place, place:] = np.square(np.maximum(beyond, 0), dtype=np.float64).sum((1, 2))
    return costs + costs.T


def _cost(costs: Float64Array, pairs: NDArray[np.int64]) -> float:
    return float(costs[pairs[:, 0], pairs[:, 1]].sum())


def _exchanged(costs: Float64Array, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs of which no two cost less after an exchange of one channel each (2-opt)."""
    pairs, changed = pairs.copy(), True
    while changed:
        changed = False
        for place, (first, second) in enumerate(pairs):
            others = pairs.T
            now = costs[first, second] + costs[others[0], others[1]]
            swaps = [costs[first, others[i]] + costs[second, others[1 - i]] for i in (0, 1)]
            gains = now - np.array(swaps)
            gains[:, place] = 0
            which, other = np.unravel_index(gains.argmax(), gains.shape)
            if gains[which, other] > 1e-9 * now[other]:
                one, two = pairs[other][which], pairs[other][1 - which]
                pairs[place], pairs[other] = (first, one), (second, two)
                changed = True
    return pairs
