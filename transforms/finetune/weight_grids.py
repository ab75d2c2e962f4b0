"""The grids that the weights of a layer are rounded to: the one in use, and one that suits its inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ops.array_types import Float64Array, QParams
from ops.formats import Format
from ops.grids import Grid, weight_grid
from ops.integers import weight_range, weight_scale
from ops.powers_of_two import are_powers, ceil_power
from transforms.finetune.round_bias import least_scale
from transforms.layers.matched_layer import MatchedLayer


def layer_grids(
    matched: MatchedLayer, importance: Float64Array, biases: Float64Array, *, rescale: bool
) -> Iterator[tuple[str, Grid, QParams | None]]:
    """Yield grids with a description, and scale and zero point of integers if those are new.

    ``importance`` [G, K] is not negative: the weight of an error for each input. ``biases`` [U * G, N] have
    to be representable with a new scale. ``rescale``: whether to yield more than the grid in use.
    """
    fmt, packed = matched.weight.format, matched.float_weight
    assert fmt is not None
    if not fmt.is_integer:
        yield "same exponents", weight_grid(packed, fmt), None
        if rescale and fmt.block > 1:
            yield "other exponents", weight_grid(packed, fmt, importance=importance), None
        return
    assert matched.weight.parameters is not None
    yield "same scale", _integer_grid(matched, fmt, matched.weight.parameters), None
    if rescale:
        scale, zero_point = _other_scale(matched, fmt, importance)
        least = least_scale(matched, biases, scale)
        if has_power_scale(matched):
            least = np.where(least > 0, ceil_power(least), least)
        scale = np.maximum(scale, least)
        yield "other scale", _integer_grid(matched, fmt, (scale, zero_point)), (scale, zero_point)


def has_power_scale(matched: MatchedLayer) -> bool:
    """Return whether the weight is integers whose scales are powers of two, for kernels that shift."""
    return matched.weight.scale is not None and are_powers(matched.weight.scale)


def _integer_grid(matched: MatchedLayer, fmt: Format, parameters: QParams) -> Grid:
    scale, zero_point = map(matched.layer.spread, parameters)
    return weight_grid(matched.float_weight, fmt, scale=scale, zero_point=zero_point.astype(np.int64))


def _other_scale(matched: MatchedLayer, fmt: Format, importance: Float64Array) -> QParams:
    """Return scales and zero points of least weighted error, as many as at present.

    A zero point in the middle of the type stays there, for kernels that compute with symmetric integers only,
    and scales that are powers of two stay such.
    """
    assert matched.weight.parameters is not None
    scale, zero_point = matched.weight.parameters
    axis = None if matched.weight.axis is None else 0
    weights = matched.float_weight
    importance = (importance / max(importance.max(), np.finfo(np.float64).tiny)).astype(np.float32)
    weighed = np.broadcast_to(importance[:, None], (*weights.shape[:2], importance.shape[-1]))
    if axis == 0 and matched.layer.shares_scales:
        weights, weighed = weights.swapaxes(0, 1), weighed.swapaxes(0, 1)
    weights, weighed = weights.reshape(scale.size, -1), weighed.reshape(scale.size, -1)
    middle = 0 if fmt.is_signed else int(fmt.highest + 1) // 2
    if (zero_point.astype(np.int64) == middle).all():
        powers = has_power_scale(matched)
        scale = weight_scale(weights, fmt, axis, method="MSE", importance=weighed, power_of_two=powers)
        return scale, zero_point
    if has_power_scale(matched):
        return scale, zero_point
    return weight_range(weights, fmt, axis, importance=weighed)
