"""Weights of layers in parts of some outputs each: what is computed of a large weight is never large."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray
from transforms.layers.linear_layer import LinearLayer, layer_of
from transforms.plan.fake_quant import FakeQuant

MOST = 1 << 20
"""Numbers of a part; more if a single output, or a weight that cannot be taken apart, has more."""


@dataclass(frozen=True)
class WeightPart:
    """Some outputs of a layer: ``where`` along ``axis`` of its weight; ``layer`` has these outputs alone."""

    layer: LinearLayer
    axis: int
    where: slice

    def of(self, weight: AnyArray) -> NDArray[np.float32]:
        """Return the part of a weight, contiguous float32."""
        return np.ascontiguousarray(weight[(slice(None),) * self.axis + (self.where,)], np.float32)

    def outputs(self, rows: AnyArray) -> AnyArray:
        """Return the part of the layer's outputs [G, R, N]."""
        return rows[:, :, self.where]

    def rounding(self, found: FakeQuant | None) -> FakeQuant | None:
        """Return what rounds the part as the whole weight is rounded."""
        return found and found.cut(self.axis, self.where, len(self.layer.shape))


def weight_parts(node: gs.Node, layer: LinearLayer, roundings: Iterable[FakeQuant]) -> list[WeightPart]:
    """Return the parts of a layer's weight, each of which can be rounded in all these ways by itself.

    A weight stays whole if blocks lie along its outputs, and that of several groups of a convolution.
    """
    axis, rank = layer.output_axis, len(layer.shape)
    grouped = node.op in ("Conv", "ConvTranspose") and layer.size[0] > 1
    if axis < 0 or grouped or not all(found.is_separable(axis, rank) for found in roundings):
        return [WeightPart(layer, 0, slice(None))]
    size = layer.shape[axis]
    step = max(1, MOST * size // math.prod(layer.shape))
    return [_part(node, layer, slice(begin, min(begin + step, size))) for begin in range(0, size, step)]


def _part(node: gs.Node, layer: LinearLayer, where: slice) -> WeightPart:
    axis = layer.output_axis
    shape = (*layer.shape[:axis], where.stop - where.start, *layer.shape[axis + 1 :])
    return WeightPart(layer_of(node, shape, layer.index), axis, where)
