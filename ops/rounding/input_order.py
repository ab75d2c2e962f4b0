"""The layout in which solvers visit the inputs of a layer: inputs first, in an order, and in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ops.array_types import FloatArray

BLOCK = 48  # inputs whose mutual effect is summed one by one, and their effect on others by a matrix product


def blocks(count: int) -> Iterator[slice]:
    """Yield the slices of ordered inputs, one for each block."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def inputs_first(weights: FloatArray, order: NDArray[np.intp]) -> FloatArray:
    """Return a view or copy [..., K, N] of weights [..., N, K], with the inputs in order."""
    return np.moveaxis(weights, -1, -2)[..., order, :]


def outputs_first(ordered: FloatArray, order: NDArray[np.intp]) -> FloatArray:
    """Return weights [..., N, K], given those [..., K, N] of :func:`inputs_first`."""
    weights = np.empty_like(ordered)
    weights[..., order, :] = ordered
    return np.ascontiguousarray(np.swapaxes(weights, -1, -2))
