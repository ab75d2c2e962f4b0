"""Whether tensors can have one scale and lose next to nothing by it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.integers import finite_range

Extremes = Mapping[str, tuple[float, float]]
"""The lowest and the highest number of tensors, by name."""

_WIDER = math.sqrt(2)
"""How many times as wide a range may get: errors of rounding grow as much, by 3 dB or half a bit."""


@dataclass(frozen=True)
class Group:
    """Tensors of one range: lowest and highest number with zero, and whether others read them as well."""

    low: float
    high: float
    is_read: bool

    def width(self, *, symmetric: bool) -> float:
        """Return what a scale has to cover."""
        return 2 * max(-self.low, self.high) if symmetric else self.high - self.low


def group_of(tensors: Iterable[gs.Tensor], extremes: Extremes, *, is_read: bool) -> Group | None:
    """Return the group of some tensors; None if the range of one is not known."""
    low = high = 0.0
    for tensor in tensors:
        if isinstance(tensor, gs.Constant):
            lowest, highest = map(float, finite_range(np.asarray(tensor.values, np.float32)))
        elif tensor.name in extremes:
            lowest, highest = extremes[tensor.name]
        else:
            return None
        low, high = min(low, lowest), max(high, highest)
    return Group(low, high, is_read)


def are_alike(groups: Sequence[Group], *, symmetric: bool) -> bool:
    """Return whether one scale for all is at most half a bit coarser than that of each group which is read.

    What only the joining node reads loses nothing: that node's result is as coarse. The result itself gets
    coarser where a scale comes from a tensor of which only a part is joined.
    """
    whole = Group(min(one.low for one in groups), max(one.high for one in groups), is_read=True)
    width = whole.width(symmetric=symmetric)
    return all(width <= _WIDER * one.width(symmetric=symmetric) for one in groups if one.is_read)
