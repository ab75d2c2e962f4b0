"""The values that a stored bias can represent, and its scale."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float64Array
from ops.integers import range_scale
from ops.powers_of_two import are_powers
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.layers.matched_layer import MatchedLayer
from transforms.layers.stored_constant import StoredConstant

Scale = NDArray[np.float32]

_LARGEST = np.float64(2**31 - 1)
_HEADROOM = 2 + 2.0**-20  # times the largest present bias, so that a changed bias still fits


def round_biases(layer: MatchedLayer, biases: Float64Array, scale: Scale | None) -> Float64Array:
    """Round the biases [U * G, N] of a weight's U users to their stored format.

    ``scale`` is a new scale of the weight, if any.
    """
    parts = zip(layer.users, np.split(biases, len(layer.users)), strict=True)
    return np.concatenate([_round_bias(user, bias, scale) for user, bias in parts])


def least_scale(layer: MatchedLayer, biases: Float64Array, scale: Scale) -> Scale:
    """Return the weight scale, in the shape of ``scale``, below which an int32 bias would overflow.

    ``biases`` [U * G, N] belong to the weight's U users.
    """
    parts = zip(layer.users, np.split(biases, len(layer.users)), strict=True)
    return np.max([_least_scale(user, bias, scale) for user, bias in parts], axis=0)


def _round_bias(layer: MatchedLayer, bias: Float64Array, scale: Scale | None) -> Float64Array:
    place = layer.bias
    if place is None:
        return bias
    numbers, step = bias / place.gain, product_scale(layer, scale)
    if step is not None:
        wide = np.broadcast_to(step.astype(np.float64).reshape(-1), (bias.size,)).reshape(bias.shape)
        numbers = np.clip(np.rint(numbers / wide), -_LARGEST, _LARGEST) * wide
    elif place.stored is not None and place.stored.format is not None and place.stored.is_integer:
        bias_scale, zero = constant_scale(place.stored, numbers)
        fmt, shift = place.stored.format, float(zero)
        numbers = (np.clip(np.rint(numbers / bias_scale) + shift, fmt.lowest, fmt.highest) - shift) * float(
            bias_scale
        )
    return numbers * place.gain


def product_scale(layer: MatchedLayer, scale: Scale | None) -> Scale | None:
    """Return the scale of an int32 bias, input scale times weight scale; None for another bias.

    It has one element or one for each output, as the weight's scale. ``scale`` is a new scale of the weight.
    """
    if layer.weight.block:
        return None
    place, x_scale = layer.bias, input_scale(layer)
    weight_scale = layer.weight.scale if scale is None else scale
    if (
        x_scale is None
        or weight_scale is None
        or place is None
        or place.node is not layer.node
        or place.is_extra
    ):
        return None
    if place.stored is not None and (place.stored.format is None or place.stored.format.name != "int32"):
        return None
    return np.asarray(np.float32(x_scale) * layer.layer.spread(weight_scale), np.float32)


def _least_scale(layer: MatchedLayer, bias: Float64Array, scale: Scale) -> Scale:
    x_scale = input_scale(layer)
    if product_scale(layer, scale) is None or x_scale is None or layer.bias is None:
        return np.zeros(scale.shape, np.float32)
    sizes = np.abs(bias / layer.bias.gain)
    if not scale.ndim:
        largest = sizes.max(initial=0)
    else:
        largest = sizes.max(0) if layer.layer.shares_scales else sizes.reshape(-1)
    return np.asarray(_HEADROOM * largest / (_LARGEST * np.float64(x_scale)), np.float32)


def constant_scale(stored: StoredConstant, numbers: Float64Array) -> tuple[Scale, NDArray[np.generic]]:
    """Return scale and zero point for numbers that replace a constant, as quantization chooses them.

    They have the type of its zero point; the scale is a power of two if the old one is.
    """
    old = np.asarray(0 if stored.grid is None else stored.grid.zero_point)
    powers = stored.scale is not None and are_powers(stored.scale)
    low, high = min(float(numbers.min(initial=0)), 0.0), max(float(numbers.max(initial=0)), 0.0)
    return range_scale(low, high, str(old.dtype), symmetric=not np.any(old), power_of_two=powers)


def input_scale(layer: MatchedLayer) -> float | None:
    """Return the scale of a layer's integer inputs, or None if they are not integers with one scale."""
    producer = walk.producer(layer.source)
    if producer is None or producer.op != "DequantizeLinear":
        return None
    scale = producer.inputs[1]
    if not isinstance(scale, gs.Constant) or not dtypes.is_type(scale, dtypes.FLOAT):
        return None
    values = load(scale)
    return float(values.reshape(())) if values.size == 1 else None
