"""Float32 matrix products that are the same, bit for bit, with any number of threads."""

from __future__ import annotations

import numpy as np

from ops.array_types import Float32Array

PIECE = 256  # terms of a sum that no library splits


def product(a: Float32Array, b: Float32Array) -> Float32Array:
    """Return the product of a [..., N, K] and b [..., K, M].

    Libraries of linear algebra split long sums into pieces, of sizes that may depend on the threads; they do
    not split short sums. Gradient steps amplify a difference in the last bit.
    """
    total = np.matmul(a[..., :PIECE], b[..., :PIECE, :])
    for start in range(PIECE, a.shape[-1], PIECE):
        piece = slice(start, start + PIECE)
        total += np.matmul(a[..., piece], b[..., piece, :])
    return total
