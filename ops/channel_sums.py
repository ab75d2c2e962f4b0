"""Sums over the channels of an array, in one pass of native code."""

from __future__ import annotations

import math

import numpy as np

from ops import _library
from ops.array_types import Float32Array, Float64Array
from ops.subnormals import keeps_subnormals


@keeps_subnormals
def channel_sums(x: Float32Array, axis: int) -> tuple[Float64Array, Float64Array]:
    """Return the sums of numbers and of squares for each index of an axis, in float64.

    The order of additions only depends on the shape. ``axis`` may be negative.
    """
    axis %= x.ndim
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    sums = np.zeros((2, x.shape[axis]))
    _library.channel_sums(np.ascontiguousarray(x, np.float32).reshape(outer, x.shape[axis], inner), sums)
    return sums[0], sums[1]
