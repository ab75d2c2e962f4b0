"""Weights of which no two neighbours in a sum are large together, as some processors need it.

x86 processors without VNNI multiply uint8 by int8 with vpmaddubsw, which adds the products of two neighbours
in 16 bits and saturates: 255 (q0 + q1) has to stay within -32,768 to 32,767. So q0 + q1 within -128 to 128 is
exact whatever the activations are. ONNX Runtime pairs the first number of a sum with the second, the third
with the fourth.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import Float32Array

LARGEST_PAIR = 128
"""The largest magnitude of the sum of two integers whose products with uint8 never saturate."""


def pair_scale(w: Float32Array, sum_axis: int, axis: int | None = None) -> Float32Array:
    """Return the least scale with which rounding leaves all pairs of a weight within LARGEST_PAIR.

    ``sum_axis``: along which products sum over ``w``; ``axis``: along which it has scales, None for one.
    0 where no pair is above 0. Rounding adds at most 1/2 to either number of a pair, so pairs of numbers may
    reach one less. Numbers that are not finite are ignored.
    """
    rows = np.moveaxis(w, sum_axis, 0)
    second = rows[1::2]
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.abs(rows[::2][: len(second)] + second)
    sums = np.moveaxis(np.where(np.isfinite(sums), sums, 0), 0, sum_axis)
    others = None if axis is None else tuple(i for i in range(w.ndim) if i != axis % w.ndim)
    return np.asarray(sums.max(others, initial=0) / np.float32(LARGEST_PAIR - 1), np.float32)
