"""The choice of scales by a layer's output error, each weight rounded to nearest.

The error of weights W [N, K] is tr(W H W^T) - 2 tr(C W^T) and what does not depend on W, with H the sum of
x x^T over rows of inputs and C that of y x^T. A scale serves one block of inputs of an output, or all of
them. Changing the weights of a block by D changes the error by tr(D (2 (W H - C) + D H)^T) in that block, so
blocks are visited one after another, each with what was chosen for those before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.rounding.row_space import RowGram
from ops.subnormals import keeps_subnormals

Candidate = Callable[[slice], Float64Array]
"""Returns weights [G, N, k] for k inputs in a row."""


@keeps_subnormals
def choose_candidates(
    gram: Float64Array | RowGram,
    cross: Float64Array,
    start: Float64Array,
    candidates: Sequence[Candidate],
    blocks: Sequence[slice],
    shared: tuple[int, ...] = (),
) -> tuple[NDArray[np.intp], Float64Array]:
    """Return which weights are best in each block, and all of these weights.

    The choice is [G, N, B] for B ``blocks`` of the inputs: 0 for the weights of ``start`` [G, N, K], which
    win ties, n for the nth of the ``candidates``. No block increases the error. ``gram`` is [G, K, K],
    ``cross`` [G, N, K]. ``shared`` are the axes out of G (0) and N (1) along which all have the same choice.
    """
    weights = start.copy()
    every = slice(None)
    slope = _times(start, gram, every, every) - cross  # half the error's gradient
    chosen = np.zeros((*start.shape[:2], len(blocks)), np.intp)
    for number, block in enumerate(blocks):
        least, best = np.zeros(start.shape[:2]), np.zeros_like(start[..., block])
        for index, candidate in enumerate(candidates, 1):
            change = candidate(block) - start[..., block]
            error = (change * (2 * slope[..., block] + _times(change, gram, block, block))).sum(-1)
            if shared:
                error = np.broadcast_to(error.sum(shared, keepdims=True), least.shape)
            is_better = error < least
            least = np.where(is_better, error, least)
            chosen[..., number] = np.where(is_better, index, chosen[..., number])
            np.copyto(best, change, where=is_better[..., None])
        weights[..., block] += best
        if number + 1 < len(blocks):
            slope += _times(best, gram, block, every)
    return chosen, weights


def _times(
    weights: Float64Array, gram: Float64Array | RowGram, inputs: slice, outputs: slice
) -> Float64Array:
    if isinstance(gram, RowGram):
        return gram.times(weights, inputs, outputs)
    return np.asarray(weights @ gram[:, inputs, outputs])
