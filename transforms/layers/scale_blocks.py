"""Scales of blocks of integers in the order of a layer's inputs.

A layer with weights [G, N, S, C] has scales [G, N, S, B], B blocks of the C channels. As [G, N, S * B] they
come in the order of the K = S * C inputs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ops.array_types import AnyArray
from ops.integer_blocks import scale_shape
from transforms.layers.linear_layer import LinearLayer


def can_have_blocks(layer: LinearLayer, axis: int | None) -> bool:
    """Return whether blocks along an axis of the weight are blocks of each output's inputs."""
    mixed = layer.op == "ConvTranspose" and layer.size[0] > 1
    return axis == layer.sum_axis and not mixed


def pack_scales(layer: LinearLayer, scale: AnyArray, block: int) -> AnyArray:
    """Return stored scales, or zero points, as [G, N, S * B]."""
    packed = _of_scales(layer, block).pack(scale)
    return packed.reshape(*packed.shape[:2], -1)


def unpack_scales(layer: LinearLayer, packed: AnyArray, block: int) -> AnyArray:
    """Undo ``pack_scales``."""
    of_scales = _of_scales(layer, block)
    return of_scales.unpack(packed.reshape(of_scales.size))


def lay_out(layer: LinearLayer, packed: AnyArray, block: int) -> AnyArray:
    """Repeat one number for each block, [G, N, S * B], for each of its inputs, [G, N, K]."""
    groups, outputs, positions, channels = layer.size
    wide = np.repeat(packed.reshape(groups, outputs, positions, -1), block, -1)[..., :channels]
    return wide.reshape(groups, outputs, -1)


def _of_scales(layer: LinearLayer, block: int) -> LinearLayer:
    """Return a layer whose weight are the scales; the size of a convolution is computed anew."""
    return replace(layer, shape=scale_shape(layer.shape, layer.sum_axis, block))
