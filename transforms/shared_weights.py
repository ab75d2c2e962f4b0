"""Layers that read one stored weight, put together: it can be changed for all of them only."""

from __future__ import annotations

import numpy as np

from transforms.graph import walk
from transforms.matched_layer import LeftAlone, MatchedLayer
from transforms.stored import OTHERS


def join_users(
    layers: list[MatchedLayer], left: list[LeftAlone]
) -> tuple[list[MatchedLayer], list[LeftAlone]]:
    """Return one layer for each weight, in the place of its last user, and the layers that are left alone.

    A weight that something else reads, too, keeps its numbers, and its layers are left alone: another
    operator, a layer in ``left``, or one that multiplies with other rows of it (transposed, for one).
    """
    joined, others = list[MatchedLayer](), list(left)
    for key in reversed(list(dict.fromkeys(id(layer.weight.source) for layer in reversed(layers)))):
        known = [layer for layer in layers if id(layer.weight.source) == key]
        first, *rest = known
        if not _has_all(known) or not all(_is_alike(first, user) for user in rest):
            others += (LeftAlone(user.name, user.node.op, f"its weight: {OTHERS}") for user in known)
            continue
        for user in rest:
            user.weight = first.weight
        first.others = rest
        joined.append(first)
    return joined, others


def _has_all(layers: list[MatchedLayer]) -> bool:
    """Return whether these layers are all that reads their weight."""
    known = {(id(layer.node), layer.layer.index) for layer in layers}
    return {(id(node), index) for node, index in walk.uses(layers[0].weight.tensors[-1])} == known


def _is_alike(layer: MatchedLayer, other: MatchedLayer) -> bool:
    """Return whether two layers multiply their rows with the same matrices."""
    if layer.layer.size != other.layer.size:
        return False
    numbers = np.arange(np.prod(layer.weight.shape)).reshape(layer.weight.shape)
    return np.array_equal(layer.layer.pack(numbers), other.layer.pack(numbers))
