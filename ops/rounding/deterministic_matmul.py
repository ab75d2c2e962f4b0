"""Matrix products in float32 whose last bits do not depend on the number of threads.

Libraries of linear algebra split long sums into pieces, of sizes that may depend on the threads; they do not
split short sums. Gradient steps amplify a difference in the last bit.
"""

from __future__ import annotations

import numpy as np

from ops.array_types import Float32Array

PIECE = 256  # numbers in a sum that no library splits


def deterministic_matmul(a: Float32Array, b: Float32Array, out: Float32Array, scratch: Float32Array) -> None:
    """Write the product of a [..., N, K] and b [..., K, M] to ``out``; it and scratch are [..., N, M]."""
    np.matmul(a[..., :PIECE], b[..., :PIECE, :], out=out)
    for start in range(PIECE, a.shape[-1], PIECE):
        piece = slice(start, start + PIECE)
        np.matmul(a[..., piece], b[..., piece, :], out=scratch)
        out += scratch
