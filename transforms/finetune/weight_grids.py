"""The grids to which a layer's weights may be rounded: the present one, and others that suit its inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from ops.array_types import AnyArray, Float32Array, Float64Array, QParams
from ops.block_scales import range_block_parameters, signed_block_scales
from ops.formats import Format
from ops.grids import Grid, weight_grid
from ops.integer_blocks import block_rows
from ops.integers import weight_range, weight_scale
from ops.pair_sums import bound_pairs, pair_limits, paired_scale, wide_pairs
from ops.powers_of_two import are_powers, ceil_power
from transforms.finetune.round_bias import least_scale
from transforms.graph.constants import load
from transforms.layers.matched_layer import MatchedLayer
from transforms.layers.scale_blocks import lay_out, pack_scales, unpack_scales

PRESENT = "same "
"""Prefix of descriptions of the present grid."""

_FEW_BITS = 6
_ALL = slice(None)
_SUM = (2,)  # of weights [G, N, K]


def layer_grids(
    matched: MatchedLayer, importance: Float64Array, biases: Float64Array, *, rescale: bool
) -> Iterator[tuple[str, Grid, QParams | None]]:
    """Yield grids with a description, and scale and zero point of integers if those are new.

    ``importance`` [G, K] is not negative: the weight of an error for each input. ``biases`` [U * G, N] must
    be representable with a new scale. ``rescale``: whether to yield more than the present grid.
    """
    fmt, packed = matched.weight.format, matched.float_weight
    assert fmt is not None
    if not fmt.is_integer:
        yield f"{PRESENT}exponents", weight_grid(packed, fmt), None
        if rescale and fmt.block > 1:
            yield "other exponents", *suited_grid(matched, importance, biases)
        return
    assert matched.weight.parameters is not None
    yield f"{PRESENT}scale", integer_grid(matched, matched.weight.parameters), None
    if rescale:
        yield "other scale", *suited_grid(matched, importance, biases)


def suited_grid(
    matched: MatchedLayer, importance: Float64Array, biases: Float64Array, part: slice = _ALL
) -> tuple[Grid, QParams | None]:
    """Return the grid of least weighted error, and its scale and zero point if it is of integers.

    The arguments are those of :func:`layer_grids`. ``part``: the outputs that matter; blocks of other
    outputs may keep their scales.
    """
    fmt = matched.weight.format
    assert fmt is not None
    if not fmt.is_integer:
        return weight_grid(matched.float_weight, fmt, importance=importance), None
    parameters = _other_scale(matched, fmt, importance, biases, part)
    return integer_grid(matched, parameters), parameters


def has_power_scale(matched: MatchedLayer) -> bool:
    """Return whether the weight is integers with power-of-two scales, for kernels that shift."""
    return matched.weight.scale is not None and are_powers(matched.weight.scale)


def plain_grid(matched: MatchedLayer, biases: Float64Array) -> Iterator[tuple[str, Grid, QParams | None]]:
    """Yield the grid of few-bit integers with scales that suit only the weights; nothing for others.

    Scales chosen for rounding to nearest may be too small for tuning.
    """
    fmt, packed = matched.weight.format, matched.float_weight
    if fmt is not None and fmt.is_integer and fmt.bits <= _FEW_BITS:
        everything = np.ones((packed.shape[0], packed[0, 0].size))
        yield "other scale, of weights alone", *suited_grid(matched, everything, biases)


def integer_grid(matched: MatchedLayer, parameters: QParams) -> Grid:
    """Return the grid of a layer's integer weights [G, N, K] with a scale and a zero point.

    Symmetric weights without -128 are not given -128.
    """
    fmt, block = matched.weight.format, matched.weight.block
    assert fmt is not None
    if block:
        scale, zero_point = (
            lay_out(matched.layer, pack_scales(matched.layer, part, block).astype(np.float64), block)
            for part in parameters
        )
        return turned_grid(scale, fmt.lowest - zero_point, fmt.highest - zero_point)
    scale, zero_point = map(matched.layer.spread, parameters)
    grid = weight_grid(matched.float_weight, fmt, scale=scale, zero_point=zero_point.astype(np.int64))
    if matched.weight.is_narrow and not np.any(zero_point):
        narrow = dataclasses.replace(grid, lowest=-grid.highest)
        return _without_wide_pairs(narrow, matched.float_weight) if has_bounded_pairs(matched) else narrow
    return grid


def _without_wide_pairs(grid: Grid, weight: Float32Array) -> Grid:
    """Return a grid of weights [G, N, S, C] on which no pair of products saturates at 16 bits."""
    nearest = grid.round(weight.reshape(*weight.shape[:2], -1)) / grid.scale
    lowest, highest = pair_limits(bound_pairs(np.rint(nearest).astype(np.int8), _SUM), _SUM)
    return dataclasses.replace(grid, lowest=lowest.astype(np.float64), highest=highest.astype(np.float64))


def has_bounded_pairs(matched: MatchedLayer) -> bool:
    """Return whether no pair of products of a layer's int8 weights saturates at 16 bits."""
    stored = load(matched.weight.source)
    if stored.dtype != np.int8 or matched.weight.block:
        return False
    packed = matched.layer.pack(stored)
    return not wide_pairs(packed.reshape(*packed.shape[:2], -1), _SUM)


def turned_grid(scale: Float64Array, lowest: Float64Array, highest: Float64Array) -> Grid:
    """Return the grid of integers within limits, for scales that may be negative, with positive steps."""
    turned = scale < 0
    return Grid(np.abs(scale), np.where(turned, -highest, lowest), np.where(turned, -lowest, highest))


def _other_scale(
    matched: MatchedLayer, fmt: Format, importance: Float64Array, biases: Float64Array, part: slice
) -> QParams:
    """Return scales and zero points of least weighted error, in their present number, with biases that fit.

    A zero point in the middle of the type stays there, for kernels that only compute with symmetric
    integers, and power-of-two scales stay powers of two.
    """
    assert matched.weight.parameters is not None
    if matched.weight.block:
        return _other_blocks(matched, fmt, importance, part)
    scale, zero_point = matched.weight.parameters
    axis = None if matched.weight.axis is None else 0
    weights = matched.float_weight
    importance = (importance / max(importance.max(), np.finfo(np.float64).tiny)).astype(np.float32)
    weighed = np.broadcast_to(importance[:, None], (*weights.shape[:2], importance.shape[-1]))
    if axis == 0 and matched.layer.shares_scales:
        weights, weighed = weights.swapaxes(0, 1), weighed.swapaxes(0, 1)
    weights, weighed = weights.reshape(scale.size, -1), weighed.reshape(scale.size, -1)
    powers = has_power_scale(matched)
    if _is_symmetric(fmt, zero_point):
        scale = weight_scale(weights, fmt, axis, method="MSE", importance=weighed, power_of_two=powers)
        if has_bounded_pairs(matched):
            sums, counts = (part.reshape(-1, importance.shape[-1]) for part in (weights, weighed))
            numbers = sums.astype(np.float32)
            scale = paired_scale(numbers, scale, (1,), axis, importance=counts, power_of_two=powers)
    elif not powers:
        scale, zero_point = weight_range(weights, fmt, axis, importance=weighed)
    least = least_scale(matched, biases, scale)
    if powers:
        least = np.where(least > 0, ceil_power(least), least)
    return np.maximum(scale, least), zero_point


def _is_symmetric(fmt: Format, zero_point: AnyArray) -> bool:
    """Return whether zero points are in the middle of the type."""
    middle = 0 if fmt.is_signed else int(fmt.highest + 1) // 2
    return bool((zero_point.astype(np.int64) == middle).all())


def _other_blocks(matched: MatchedLayer, fmt: Format, importance: Float64Array, part: slice) -> QParams:
    """Return scales and zero points of least weighted error by blocks; other outputs keep the old ones."""
    assert matched.weight.parameters is not None
    old_scale, old_zeros = matched.weight.parameters
    packed, block = matched.float_weight[:, part], matched.weight.block
    counts = importance.reshape(len(packed), 1, *packed.shape[2:])
    rows, weighed = (block_rows(some, -1, block) for some in (packed, np.broadcast_to(counts, packed.shape)))

    def _whole(chosen: AnyArray, old: AnyArray) -> AnyArray:
        values = pack_scales(matched.layer, np.broadcast_to(old, old_scale.shape), block).astype(chosen.dtype)
        values[:, part] = chosen.reshape(len(values), -1, values.shape[-1])
        return unpack_scales(matched.layer, values, block)

    if _is_symmetric(fmt, old_zeros):
        scale = (
            signed_block_scales(rows, fmt, weighed)
            if fmt.is_signed
            else weight_scale(rows, fmt, 0, method="MSE", importance=weighed)
        )
        return _whole(scale, old_scale), old_zeros
    scale, zeros = range_block_parameters(rows, fmt, weighed)
    return _whole(scale, old_scale), _whole(zeros, old_zeros)
