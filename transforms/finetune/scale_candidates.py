"""Scales of integers, and exponents of blocks, with the least output error of a layer."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array, QParams
from ops.formats import Format
from ops.grids import Grid, block_grids
from ops.rounding.choose_scales import choose_candidates
from transforms.finetune.diagonal_gram import DiagonalStats
from transforms.finetune.gram import GramStats, SharedGramStats
from transforms.finetune.round_bias import least_scale, round_biases
from transforms.finetune.tune_layer import LayerSolution
from transforms.finetune.weight_grids import integer_grid
from transforms.layers.matched_layer import MatchedLayer

_COARSE = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Scales that are tried first, times that with which the largest number of a channel is representable."""

_FINER = ((0.95, 1.05), (0.975, 1.025))
"""Scales that are tried then, times the best so far."""

_ROWS = 1 << 22  # weights in block formats whose grids are made together


def best_scales(
    layer: MatchedLayer, before: LayerSolution, fit: SharedGramStats, *, moves_bias: bool
) -> LayerSolution:
    """Return weights rounded to nearest with the scales of least error on ``fit``, and their biases.

    ``before`` is what the layer has: no block of weights is worse on ``fit``. Unless ``moves_bias``, biases
    stay.
    """
    fmt, packed = layer.weight.format, layer.float_weight
    assert fmt is not None
    target = packed.reshape(*packed.shape[:2], -1).astype(np.float64)
    form = _form(fit, None if moves_bias else before.bias)
    if not fmt.is_integer:
        weights, scale = _blocks(layer, fmt, before.weights, form), None
    else:
        scale = _integers(layer, fmt, target, before.weights, form)
        least = least_scale(layer, fit.bias(target) if moves_bias else before.bias, scale[0])
        scale = np.maximum(scale[0], least), scale[1]
        weights = integer_grid(layer, scale).round(target)
    bias = fit.bias(weights) if moves_bias else before.bias
    rounded = round_biases(layer, bias, None if scale is None else scale[0])
    return LayerSolution("scales by output error", weights, rounded, scale)


Form = tuple[Float64Array, Float64Array]
"""The sums of x x^T [G, K, K], or their diagonals [G, K], and of y x^T [G, N, K]."""


def _form(fit: SharedGramStats, bias: Float64Array | None) -> Form:
    """Return the sums that determine the weights of least error, with biases [U * G, N] or free ones."""
    if bias is None:
        sums = fit.free()
        return sums.xx, _cross(sums)
    biases = np.split(bias, len(fit.parts))
    crosses = [_cross(part, own) for part, own in zip(fit.parts, biases, strict=True)]
    return np.sum([part.xx for part in fit.parts], 0), np.sum(crosses, 0)


def _cross(sums: GramStats, bias: Float64Array | None = None) -> Float64Array:
    if isinstance(sums, DiagonalStats):
        return np.asarray(sums.weight * sums.xx[:, None], np.float64)
    return sums.yx if bias is None else sums.yx - bias[..., None] * sums.x[:, None]


def _integers(
    layer: MatchedLayer, fmt: Format, target: Float64Array, start: Float64Array, form: Form
) -> QParams:
    """Return scales of the number there is, and the zero points there are."""
    assert layer.weight.parameters is not None
    scale, zero = (np.asarray(layer.layer.spread(part)) for part in layer.weight.parameters)
    lead = (*target.shape[:2], 1)
    present = np.broadcast_to(scale.reshape(-1), lead[0] * lead[1]).reshape(lead).astype(np.float64)
    middle = np.broadcast_to(zero.astype(np.float64).reshape(-1), lead[0] * lead[1]).reshape(lead)
    shared = (0, 1) if layer.weight.parameters[0].size == 1 else (0,) if layer.layer.shares_scales else ()
    lowest, highest = fmt.lowest - middle, fmt.highest - middle
    largest = _largest_scale(target, lowest, highest)
    largest = largest.max(shared, keepdims=True) if shared else largest
    base = np.where(largest > 0, largest, present)
    for steps in (_COARSE, *_FINER):
        tried = [np.broadcast_to(base * step, lead) for step in steps]
        grids = [Grid(one, lowest, highest) for one in tried]
        rounds = [partial(_round, grid, target) for grid in grids]
        (chosen, start), stack = (
            choose_candidates(*form, start, rounds, [slice(None)], shared),
            [present, *tried],
        )
        present = base = np.take_along_axis(np.stack(stack), chosen[None], 0)[0]
    return _in_shape(layer, present), layer.weight.parameters[1]


def _in_shape(layer: MatchedLayer, scale: Float64Array) -> NDArray[np.float32]:
    """Return scales [G, N, 1] as they are stored."""
    assert layer.weight.scale is not None
    return scale.reshape(-1)[: layer.weight.scale.size].reshape(layer.weight.scale.shape).astype(np.float32)


def _largest_scale(target: Float64Array, lowest: Float64Array, highest: Float64Array) -> Float64Array:
    """Return the least scales [G, N, 1] with which all weights of an output are representable."""
    ends = target.min(-1, keepdims=True), target.max(-1, keepdims=True)
    parts = [
        np.where(end * limit > 0, end / np.where(limit == 0, 1, limit), 0)
        for end, limit in zip(ends, (lowest, highest), strict=True)
    ]
    return np.maximum(*parts)


def _round(grid: Grid, target: Float64Array, inputs: slice) -> Float64Array:
    return grid.round(target[..., inputs])


def _blocks(layer: MatchedLayer, fmt: Format, start: Float64Array, form: Form) -> Float64Array:
    """Return weights in a block format, with exponents from one below to one above the format's own."""
    gram, cross = form
    importance = np.maximum(np.diagonal(gram, axis1=1, axis2=2) if gram.ndim > 2 else gram, 0)
    packed, weights = layer.float_weight, start.copy()
    positions, channels = packed.shape[2:]
    blocks = [
        slice(place * channels + first, place * channels + min(first + fmt.block, channels))
        for place in range(positions)
        for first in range(0, channels, fmt.block)
    ]
    step = max(1, _ROWS // (packed.shape[0] * start.shape[2]))
    for rows in (slice(first, first + step) for first in range(0, packed.shape[1], step)):
        target = packed[:, rows].reshape(*start[:, rows].shape).astype(np.float64)
        grids = block_grids(packed[:, rows], fmt, importance=importance)
        rounded = [grid.round(target) for grid in grids]
        candidates = [partial(_part, one) for one in rounded]
        weights[:, rows] = choose_candidates(gram, cross[:, rows], start[:, rows], candidates, blocks)[1]
    return weights


def _part(weights: Float64Array, inputs: slice) -> Float64Array:
    return weights[..., inputs]
