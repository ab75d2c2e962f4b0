"""8-bit sums of x86 processors without VNNI, and weights for which these sums are exact.

There uint8 activations meet int8 weights in ``vpmaddubsw`` (Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 2, PMADDUBSW): the products of two adjacent terms of a sum are added in 16 bits,
which saturate, before they are added in 32. ONNX Runtime's optimizer makes int8 activations uint8 by adding
128, so that they behave the same. Adjacent terms are numbers 2 i and 2 i + 1 of the flat sum in the order of
its kernels: the rows of a matrix; for a convolution its positions in sequence, with the input channels of a
group at each.

``axes`` are always those of a sum in the order in which the kernel traverses them, fastest last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float32Array, Float64Array
from ops.subnormals import keeps_subnormals

LARGEST_PAIR = 128
"""Largest sum of two weights with one sign that is exact for any two activations: 255 * 128 = 32,640 is
within 16 bits, and so is -32,640; 255 * 129 = 32,895 is not. Weights with two signs, at most 255 * 127,
always are."""

_LARGEST = 127

_MEAN_SQUARE = 1 / 12
"""Mean squared error of rounding, in squared steps, if it is spread evenly over one step."""

_GROWTH = np.linspace(1, 2, 51)
"""Factors to try on a scale: with 2, no pair exceeds the limit, since the largest numbers become 64."""


def pair_sums(activations: NDArray[np.integer], weights: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return activations [..., M, K] times weights [..., K, N], added in pairs that saturate at 16 bits.

    ``activations`` are the numbers that the kernel multiplies; ValueError unless they are 0 to 255.
    """
    low, high = int(activations.min(initial=0)), int(activations.max(initial=0))
    if low < 0 or high > np.iinfo(np.uint8).max:
        raise ValueError(f"activations go from {low} to {high}, legal are 0 to 255")
    read, stored = _even(activations.astype(np.int64)), _even(np.swapaxes(weights, -1, -2).astype(np.int64))
    products = read[..., :, None, :] * stored[..., None, :, :]
    limits = np.iinfo(np.int16)
    return np.asarray(np.clip(products[..., 0::2] + products[..., 1::2], limits.min, limits.max).sum(-1))


def wide_pairs(weights: NDArray[np.int8], axes: tuple[int, ...]) -> int:
    """Return how many pairs of int8 weights saturate with some activations."""
    return int((np.abs(_totals(_in_sums(weights, axes))) > LARGEST_PAIR).sum())


def bound_pairs(weights: NDArray[np.int8], axes: tuple[int, ...]) -> NDArray[np.int8]:
    """Return int8 weights without saturating pairs; a new array if any weight changes.

    Both weights of a pair beyond :data:`LARGEST_PAIR` lose half of the excess, the larger one any odd unit.
    """
    rows = _even(_in_sums(weights, axes))
    totals = _totals(rows)
    wide = np.nonzero(np.abs(totals) > LARGEST_PAIR)
    if not wide[0].size:
        return weights
    first, second = ((*wide[:-1], 2 * wide[-1] + i) for i in (0, 1))
    sign = np.sign(totals[wide])
    beyond = np.abs(totals[wide]) - LARGEST_PAIR
    from_first = (beyond + (sign * rows[first] >= sign * rows[second])) // 2
    rows[first] -= (sign * from_first).astype(np.int8)
    rows[second] -= (sign * (beyond - from_first)).astype(np.int8)
    return _from_sums(rows, weights.shape, axes)


def pair_limits(
    weights: NDArray[np.int8], axes: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lowest and the highest number to which each weight may change so that no pair saturates.

    ``weights`` have no wide pair. Both weights of a pair may move by half of the remaining room, a last one
    without a partner freely.
    """
    length = math.prod(weights.shape[i] for i in axes)
    rows = _even(_in_sums(weights, axes)).astype(np.int64)
    totals = _totals(rows)
    ends = []
    for sign in (-1, 1):
        room = LARGEST_PAIR - sign * totals
        end = rows + sign * np.stack([room // 2, room - room // 2], -1).reshape(rows.shape)
        end[..., length - length % 2 : length] = sign * _LARGEST
        ends.append(end)
    lowest, highest = (_from_sums(end, weights.shape, axes) for end in ends)
    return np.maximum(lowest, -_LARGEST), np.minimum(highest, _LARGEST)


@keeps_subnormals
def paired_scale(
    weights: Float32Array,
    scale: Float32Array,
    axes: tuple[int, ...],
    axis: int | None,
    *,
    importance: NDArray[np.floating] | None = None,
    power_of_two: bool = False,
) -> Float32Array:
    """Return the scale of int8 weights, not below ``scale``, that suits them after pairs are bounded.

    ``scale`` is a single one, or one for each index of ``axis``. Each is multiplied by the factor from 1 to
    2 (1 or 2, with ``power_of_two``) of the least expected error: (f s)^2 / 12 for each weight by rounding,
    and (p - 128 f s)^2 / 2 for each pair of one sign with the sum p beyond 128 f s, of which each weight
    bears half. ``importance`` multiplies the errors of weights, is not negative, and broadcasts to their
    shape.
    """
    rows = _even(_in_sums(weights, axes))
    same_sign = rows[..., 0::2] * rows[..., 1::2] > 0
    sums = np.where(same_sign, np.abs(_totals(rows)), 0)
    channels = _channels(weights.shape, axes, axis)
    scales = np.asarray(scale, np.float64).reshape(-1)
    wide = np.nonzero(sums > LARGEST_PAIR * scales[channels][..., None])
    if not wide[0].size:
        return scale
    of_pair, total = _weighed(importance, weights.shape, axes, wide)
    rounding = np.bincount(channels.reshape(-1), total.reshape(-1), scales.size) * _MEAN_SQUARE
    places, sums = channels[wide[:-1]], sums[wide].astype(np.float64)
    factors = np.array([1.0, 2.0]) if power_of_two else _GROWTH
    errors = [
        rounding * (factor * scales) ** 2 + np.bincount(places, of_pair * excess**2, scales.size)
        for factor in factors
        for excess in [np.maximum(sums - LARGEST_PAIR * factor * scales[places], 0)]
    ]
    grown = (scales * factors[np.argmin(errors, axis=0)]).astype(np.float32)
    return np.maximum(grown, np.reshape(scale, -1)).reshape(np.shape(scale))


def _weighed(
    importance: NDArray[np.floating] | None,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    wide: tuple[NDArray[np.intp], ...],
) -> tuple[Float64Array | float, Float64Array]:
    """Return the factor on the squared excess of each wide pair, and the total importance of each sum.

    Two weights that share an excess by their importance i and j leave i j / (i + j) of its square.
    """
    if importance is None:
        length = math.prod(shape[i] for i in axes)
        outer = [shape[i] for i in _others(len(shape), axes)]
        return 0.5, np.full(outer, float(length))
    rows = _even(_in_sums(np.broadcast_to(importance, shape), axes))
    left, right = (rows[..., i::2][wide].astype(np.float64) for i in (0, 1))
    both = np.maximum(left + right, np.finfo(np.float64).tiny)
    return left * right / both, rows.sum(-1, dtype=np.float64)


def _channels(shape: tuple[int, ...], axes: tuple[int, ...], axis: int | None) -> NDArray[np.intp]:
    """Return the index of the scale of each sum's weights."""
    outer = _others(len(shape), axes)
    sizes = [shape[i] for i in outer]
    if axis is None:
        return np.zeros(sizes, np.intp)
    place = outer.index(axis % len(shape))
    counted = np.arange(sizes[place]).reshape([-1 if i == place else 1 for i in range(len(sizes))])
    return np.broadcast_to(counted, sizes)


def _others(rank: int, axes: Iterable[int]) -> list[int]:
    return [i for i in range(rank) if i not in axes]


def _in_sums(array: AnyArray, axes: tuple[int, ...]) -> AnyArray:
    """Return an array with its sums along the last axis, [..., K]."""
    outer = _others(array.ndim, axes)
    turned = array.transpose(*outer, *axes)
    return turned.reshape(*(array.shape[i] for i in outer), -1)


def _from_sums(rows: AnyArray, shape: tuple[int, ...], axes: tuple[int, ...]) -> AnyArray:
    """Return the array that ``_in_sums`` and ``_even`` rearranged."""
    order = [*_others(len(shape), axes), *axes]
    length = math.prod(shape[i] for i in axes)
    turned = rows[..., :length].reshape([shape[i] for i in order])
    return np.ascontiguousarray(turned.transpose(np.argsort(order)))


def _even(rows: AnyArray) -> AnyArray:
    """Return a copy of rows with even length, with a 0 at the end of odd ones."""
    padded = np.zeros((*rows.shape[:-1], rows.shape[-1] + rows.shape[-1] % 2), rows.dtype)
    padded[..., : rows.shape[-1]] = rows
    return padded


def _totals(rows: AnyArray) -> AnyArray:
    """Return the sums of adjacent numbers; a last number without a partner stands alone."""
    even = _even(rows) if rows.shape[-1] % 2 else rows
    kind = np.int16 if even.dtype == np.int8 else even.dtype
    return np.asarray(even[..., 0::2].astype(kind) + even[..., 1::2])
