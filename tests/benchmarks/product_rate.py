"""How fast this process makes matrix products: the measure of solvers that are made of them."""

from __future__ import annotations

from time import process_time

import numpy as np
from numpy.typing import DTypeLike

SIZE, ROUNDS = 512, 40


def product_rate(dtype: DTypeLike = np.float32) -> float:
    """Return the flops per second of a product of two square matrices, the best of several."""
    left, right = np.random.default_rng(0).standard_normal((2, SIZE, SIZE)).astype(dtype)
    out = left @ right
    times = []
    for _ in range(ROUNDS):
        start = process_time()
        np.matmul(left, right, out=out)
        times.append(process_time() - start)
    return 2 * SIZE**3 / min(times)
