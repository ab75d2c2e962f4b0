"""Scales of integers, and exponents of blocks, with the least output error of a layer."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float64Array, QParams
from ops.block_scales import short_scales
from ops.formats import Format
from ops.grids import Grid, block_grids
from ops.powers_of_two import ceil_power
from ops.rounding.choose_scales import choose_candidates
from ops.rounding.row_space import RowGram
from transforms.finetune.layer_stats import RowStats, SharedGramStats
from transforms.finetune.round_bias import least_scale, round_biases
from transforms.finetune.tune_layer import LayerSolution
from transforms.finetune.weight_grids import has_power_scale, integer_grid, turned_grid
from transforms.layers.matched_layer import MatchedLayer
from transforms.layers.scale_blocks import input_blocks, pack_scales, unpack_scales

DAMPINGS = (0.0, 0.1)
"""How firmly weights on integers stay near the float ones: samples may say too little about some. The second
is tried where there are samples enough: a single one chose it wrongly, which cost 0.5 dB on unseen ones.
Exponents of blocks can only be one off; with it networks lost up to 0.6 dB."""

_COARSE = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Scales that are tried first, times that with which the largest number of a channel is representable."""

_FINER = ((0.95, 1.05), (0.975, 1.025))
"""Scales that are tried then, times the best so far."""

_POWERS = (1.0, 0.5, 0.25)
"""The same for scales that are powers of two, times the least that represents the largest number."""

_ROWS = 1 << 22  # weights in block formats whose grids are made together


def best_scales(
    layer: MatchedLayer, before: LayerSolution, fit: SharedGramStats, damping: float = 0.0
) -> LayerSolution:
    """Return weights rounded to nearest with the scales of least error on ``fit``, and their biases.

    ``before`` is what the layer has: with its weights, a block can stay as it is. ``damping`` adds the
    squared distance from the float weights to the error of a row, times that share of the mean square of an
    input.
    """
    fmt, packed = layer.weight.format, layer.float_weight
    assert fmt is not None
    target = packed.reshape(*packed.shape[:2], -1).astype(np.float64)
    form = _form(fit, target, damping)
    if not fmt.is_integer:
        weights, scale = _blocks(layer, fmt, before.weights, form), None
    else:
        scale = _integers(layer, fmt, target, before.weights, form)
        least = least_scale(layer, fit.bias(target), scale[0])
        if has_power_scale(layer):
            least = np.where(least > 0, ceil_power(least), least)
        scale = np.copysign(np.maximum(np.abs(scale[0]), least), scale[0]), scale[1]
        weights = integer_grid(layer, scale).round(target)
    rounded = round_biases(layer, fit.bias(weights), None if scale is None else scale[0])
    return LayerSolution("scales by output error", weights, rounded, scale)


Form = tuple[Float64Array | RowGram, Float64Array, Float64Array]
"""The sum of x x^T [G, K, K], that of y x^T [G, N, K], and the squares of each input [G, K]."""


def _form(fit: SharedGramStats, target: Float64Array, damping: float) -> Form:
    """Return the sums that determine the weights of least error, near weights [G, N, K]."""
    sums = fit.free()
    added = damping * sums.importance.mean(-1)[:, None, None]
    if isinstance(sums, RowStats):
        gram: Float64Array | RowGram = RowGram(sums.problem(target).rows, added)
    else:
        gram = sums.xx + added * np.eye(sums.xx.shape[-1])
    return gram, np.asarray(sums.yx + added * target, np.float64), sums.importance + added[..., 0]


def _integers(
    layer: MatchedLayer, fmt: Format, target: Float64Array, start: Float64Array, form: Form
) -> QParams:
    """Return scales of the number there is, and the zero points there are."""
    scales = _Scales(layer, fmt)
    base = scales.largest(target)
    base = np.where(base > 0, base, scales.present)
    powers, present = has_power_scale(layer), scales.present
    if powers:
        base = ceil_power(base).astype(np.float64)
    for steps in (_POWERS,) if powers else (_COARSE, *_FINER):
        tried = [np.broadcast_to(base * step, present.shape) for step in steps]
        rounds = [partial(scales.round, one, target) for one in tried]
        chosen, start = choose_candidates(*form[:2], start, rounds, scales.blocks, scales.shared)
        present = base = np.take_along_axis(np.stack([present, *tried]), chosen[None], 0)[0]
    return scales.stored(present), scales.zero_point


class _Scales:
    """The scales of a layer's integers, [G, N, B] for B blocks of inputs, or for all as one block.

    Here they are positive; a block whose scale is stored as negative has limits with the ends exchanged.
    """

    def __init__(self, layer: MatchedLayer, fmt: Format) -> None:
        assert layer.weight.parameters is not None
        self._layer, self._block = layer.layer, layer.weight.block
        self._stored, self.zero_point = layer.weight.parameters
        self.blocks = input_blocks(layer.layer, self._block) if self._block else [slice(None)]
        self.shared = self._axes()
        present, middle = (self._spread(part) for part in layer.weight.parameters)
        grid = turned_grid(present, fmt.lowest - middle, fmt.highest - middle)
        self._signs = np.where(present < 0, -1.0, 1.0)
        self.present, self._lowest, self._highest = grid.scale, grid.lowest, grid.highest

    def largest(self, target: Float64Array) -> Float64Array:
        """Return the least scales with which all weights are representable, 0 for zeros."""
        found = np.zeros(self.present.shape)
        for number, block in enumerate(self.blocks):
            ends = target[..., block].min(-1), target[..., block].max(-1)
            for end, limits in zip(ends, (self._lowest, self._highest), strict=True):
                limit = limits[..., number]
                scale = np.where(end * limit > 0, end / np.where(limit == 0, 1, limit), 0)
                found[..., number] = np.maximum(found[..., number], scale)
        return found.max(self.shared, keepdims=True) if self.shared else found

    def round(self, scale: Float64Array, target: Float64Array, inputs: slice) -> Float64Array:
        """Return the weights of a block on scales."""
        own = (..., slice(number := self.blocks.index(inputs), number + 1))
        return Grid(scale[own], self._lowest[own], self._highest[own]).round(target[..., inputs])

    def stored(self, scale: Float64Array) -> NDArray[np.float32]:
        """Return scales as they are stored, with the signs that they had."""
        if self._block:
            return short_scales(unpack_scales(self._layer, scale * self._signs, self._block))
        numbers = scale.reshape(-1)[: self._stored.size]
        return numbers.reshape(self._stored.shape).astype(np.float32)

    def _axes(self) -> tuple[int, ...]:
        if self._block:
            return ()
        return (0, 1) if self._stored.size == 1 else (0,) if self._layer.shares_scales else ()

    def _spread(self, part: AnyArray) -> Float64Array:
        if self._block:
            return pack_scales(self._layer, part, self._block).astype(np.float64)
        groups, outputs = self._layer.size[:2]
        numbers = np.asarray(self._layer.spread(part)).astype(np.float64).reshape(-1)
        return np.broadcast_to(numbers, groups * outputs).reshape(groups, outputs, 1)


def _blocks(layer: MatchedLayer, fmt: Format, start: Float64Array, form: Form) -> Float64Array:
    """Return weights in a block format, with exponents from one below to one above the format's own."""
    gram, cross, importance = form
    packed, weights = layer.float_weight, start.copy()
    blocks = input_blocks(layer.layer, fmt.block)
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
