"""Matrix products in float32 whose last bits do not depend on how many threads make them.

Libraries of linear algebra cut long sums into pieces, of sizes that may depend on the threads; short sums
they do not cut. What gradient steps do with a last bit is not a last bit any more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]

PIECE = 256  # numbers in a sum that no library cuts


def steady_product(a: Singles, b: Singles, out: Singles, scratch: Singles) -> None:
    """Write the product of a [..., N, K] and b [..., K, M] to ``out``; it and scratch are [..., N, M]."""
    np.matmul(a[..., :PIECE], b[..., :PIECE, :], out=out)
    for start in range(PIECE, a.shape[-1], PIECE):
        piece = slice(start, start + PIECE)
        np.matmul(a[..., piece], b[..., piece, :], out=scratch)
        out += scratch
