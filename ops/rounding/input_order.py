"""The layout in which solvers visit the inputs of a layer: inputs first, in an order, and in blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ops.array_types import FloatArray

BLOCK = 48  # inputs whose effect on each other is summed one by one, and on the rest by a matrix product


def blocks(count: int) -> Iterator[slice]:
    """Yield the slices of so many ordered inputs, a block each."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def inputs_first(weights: FloatArray, order: NDArray[np.intp]) -> FloatArray:
    """Return a view or copy [..., K, N] of weights [..., N, K], with the inputs in order."""
    return np.moveaxis(weights, -1, -2)[..., order, :]


def outputs_first(ordered: FloatArray, order: NDArray[np.intp]) -> FloatArray:
    """Return weights [..., N, K] of those [..., K, N] that :func:`inputs_first` made."""
    weights = np.empty_like(ordered)
    weights[..., order, :] = ordered
    return np.ascontiguousarray(np.swapaxes(weights, -1, -2))
