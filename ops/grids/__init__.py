"""The grid of a weight in any number format.

Weights are [..., N, K]: N outputs, K inputs of the sum. K consists of S spatial positions of C channels, the
channel varying fastest; blocks run along the channels and start anew at each position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ops.array_types import Float64Array
from ops.formats import LINEAR, Format, get_format
from ops.grids.blocks import block_grid
from ops.grids.fixed import Grid
from ops.integers import weight_scale
from ops.reference import Element
from ops.subnormals import keeps_subnormals

__all__ = ["Grid", "weight_grid"]

FLOATS = {"float16": Element(5, 10, 15, 15, 65504.0), "bfloat16": Element(8, 7, 127, 127, 255 * 2.0**120)}


@keeps_subnormals
def weight_grid(
    weight: NDArray[np.float32],
    format: str | Format,
    *,
    scale: ArrayLike | None = None,
    zero_point: ArrayLike = 0,
    per_channel: bool = True,
    importance: NDArray[np.floating] | None = None,
) -> Grid:
    """Return the grid of a weight [..., N, S, C] in a format; [G, N, S, C] for G groups.

    Integers: ``scale`` and ``zero_point`` have one element or one per output, over all groups. Without a
    scale it is chosen from the weight, one per output or a single one (``per_channel``). Blocks: exponents
    are those of the format. With ``importance``, both are chosen by least weighted squared error instead: it
    is not negative, [K] or one row for each group [G, K], such as the diagonal of a Gram matrix; exponents
    then differ from the format's by at most one.

    ops.quantize_dequantize along the channels, or ops.integers with the same scale and zero point, leaves
    numbers of the grid unchanged.

    Raises ValueError for an unknown format, weights that are not finite, a scale that is not positive and
    inconsistent shapes.
    """
    fmt = get_format(format)
    weight = np.asarray(weight, np.float32)
    if weight.ndim < 3 or not weight.size:
        raise ValueError(f"the weight has shape {list(weight.shape)}, legal is [..., N, S, C], not empty")
    if not np.isfinite(weight).all():
        raise ValueError("the weight holds numbers that are not finite")
    weighed = None if importance is None else _rows_of_importance(importance, weight.shape)
    if fmt.op != LINEAR:
        return block_grid(weight.astype(np.float64), fmt, weighed)
    if fmt.is_integer:
        return _integer_grid(weight, fmt, scale, zero_point, per_channel, weighed)
    ones = np.ones((*weight.shape[:-2], 1))
    element = FLOATS[fmt.name]
    return Grid(ones, -element.largest * ones, element.largest * ones, element)


def _integer_grid(
    weight: NDArray[np.float32],
    fmt: Format,
    scale: ArrayLike | None,
    zero_point: ArrayLike,
    per_channel: bool,
    importance: Float64Array | None,
) -> Grid:
    lead = (*weight.shape[:-2], 1)
    if scale is None:
        rows = weight.reshape(int(np.prod(lead)), -1)
        axis = 0 if per_channel else None
        method = "MinMax" if importance is None else "MSE"
        flat = None if importance is None else importance.reshape(len(rows), -1)
        scale = weight_scale(rows, fmt, axis, method=method, importance=flat)
    scales = _per_output("scale", scale, lead)
    zeros = _per_output("zero_point", zero_point, lead)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ValueError(f"scale {scales.min():g} is not positive and finite")
    return Grid(scales, fmt.lowest - zeros, fmt.highest - zeros)


def _per_output(name: str, values: ArrayLike, lead: tuple[int, ...]) -> Float64Array:
    wide = np.asarray(values).astype(np.float64)
    outputs = int(np.prod(lead))
    if wide.size not in (1, outputs):
        raise ValueError(f"{name} has {wide.size} elements, legal are 1 and {outputs}")
    return np.broadcast_to(wide.reshape(-1), (outputs,)).reshape(lead)


def _rows_of_importance(importance: NDArray[np.floating], shape: tuple[int, ...]) -> Float64Array:
    """Broadcast the importance of inputs to every output: [..., N, S, C]."""
    wide = np.asarray(importance, np.float64)
    *groups, _, positions, channels = shape
    if wide.shape not in ((positions * channels,), (*groups, positions * channels)):
        raise ValueError(f"importance {list(wide.shape)} does not fit a weight {list(shape)}")
    if not (np.isfinite(wide) & (wide >= 0)).all():
        raise ValueError(f"importance {wide.min():g} is negative or not finite")
    rows = wide.reshape(*wide.shape[:-1], 1, positions, channels)
    return np.broadcast_to(rows, shape)
