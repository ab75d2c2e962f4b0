"""Microscaling in ONNX's own element types: weights, and the scales of blocks as a function in operators."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray

from ops.formats import MX, Format
from transforms.functions import DOMAIN
from transforms.functions.code_layout import BlockLayout, Codes
from transforms.functions.codes import codes_of, encode
from transforms.functions.text import SIZES, constant, power_of_two

NATIVE: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "int8": np.dtype(np.int8),
        "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
        "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
        "fp6_e3m2": np.dtype(ml_dtypes.float6_e3m2fn),
        "fp6_e2m3": np.dtype(ml_dtypes.float6_e2m3fn),
        "fp4_e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    }
)
"""The type of ONNX for each element type."""

SCALE = np.dtype(ml_dtypes.float8_e8m0fnu)
_MOST_SCALE = 254  # 255 is NaN
_OPSETS = {"fp6_e3m2": 28, "fp6_e2m3": 28}

Native = tuple[NDArray[np.generic], NDArray[np.generic]]


def least_opset(fmt: Format) -> int:
    """Return the first opset whose QuantizeLinear and DequantizeLinear have a format's types."""
    return _OPSETS.get(str(fmt.attributes["element_dtype"]), 24)


def native_weight(values: NDArray[np.float32], fmt: Format, axis: int) -> Native | None:
    """Return elements, of the shape of a weight, and scales of its blocks along an axis.

    They stand for the same numbers, in int8 up to the sign of zeros. None if there are none: for numbers on
    no such grid, or that need a scale below 2^-127.
    """
    codes = codes_of(fmt) if fmt.op == MX else None
    if codes is None or values.size < 2:
        return None
    layout = BlockLayout.along(values.shape, axis, fmt.block, 1)
    found = encode(values, codes, layout, least=codes.unit)
    scales = found.exponents.astype(np.int16) - codes.unit
    elements = _elements(values, found.codes, found.places, scales, codes, layout)
    if elements is None or scales.min() < 0 or scales.max() > _MOST_SCALE:
        return None
    axis %= values.ndim
    number = -(-values.shape[axis] // fmt.block)
    of_blocks = (*values.shape[:axis], number, *values.shape[axis + 1 :])
    kind = NATIVE[str(fmt.attributes["element_dtype"])]
    return elements.view(kind).reshape(values.shape), scales.astype(np.uint8).view(SCALE).reshape(of_blocks)


def _elements(
    values: NDArray[np.float32],
    codes: NDArray[np.uint8],
    places: NDArray[np.int64],
    scales: NDArray[np.int16],
    kind: Codes,
    layout: BlockLayout,
) -> NDArray[np.uint8] | None:
    """Return the bits of elements: the codes, but in two's complement, where 0 has one sign."""
    if not kind.is_complement:
        return None if places.size else codes
    elements = codes.copy()
    elements[elements == 128] = 0
    elements[places] = 128
    units = elements.view(np.int8).astype(np.float64).reshape(layout.cut)
    numbers = np.ldexp(units, layout.spread(scales, layout.block) - 127)
    return elements if np.array_equal(numbers, values.reshape(layout.cut)) else None


BLOCK_SCALE = "BlockScale"
FIRST_OPSET = 24
"""The first with scales of the type float8e8m0."""

_LEAST, _LARGEST = 2.0**-127, (2 - 2.0**-23) * 2.0**127

_BODY = (
    constant("zero", "int64", [0])
    + constant("one", "int64", [1])
    + constant("two", "int64", [2])
    + constant("last", "int64", [2**63 - 1])
    + constant("nothing", "float", 0.0)
    + constant("largest", "float", _LARGEST)
    + constant("least_scale", "double", _LEAST)
    + constant("most_scale", "double", 1 / _LEAST)
    + constant("two_wide", "double", 2.0)
    + """block_size = Constant <value_ints: ints = @sizes> ()
group_size = Identity(block_size)
"""
    + SIZES
    + """wide = Cast <to = 1> (X)
fibres = Reshape(wide, fibre_shape)
padded_fibres = Pad(fibres, pads)
rows_shape = Concat <axis = 0> (outer, number, block, inner)
rows = Reshape(padded_fibres, rows_shape)
magnitude = Abs(rows)
is_finite = LessOrEqual(magnitude, largest)
counted = Where(is_finite, magnitude, nothing)
top = ReduceMax <keepdims = 0> (counted, two)
top_wide = Cast <to = 11> (top)
"""
    + power_of_two("power_found", "top_wide", "double")
    + """power = Max(power_found, least_scale)
relative = Div(top_wide, power)
bound = Constant <value_float: float = @bound> ()
bound_wide = Cast <to = 11> (bound)
grows = Greater(relative, bound_wide)
twice = Mul(power, two_wide)
shared = Where(grows, twice, power)
unit = Constant <value_float: float = @unit> ()
unit_wide = Cast <to = 11> (unit)
scale = Mul(shared, unit_wide)
not_below = Max(scale, least_scale)
not_above = Min(not_below, most_scale)
scale_float = Cast <to = 1> (not_above)
scale_shape = Concat <axis = 0> (dims_before, number, dims_after)
shaped = Reshape(scale_float, scale_shape)
Y = Cast <to = 24> (shaped)
"""
)


def make_block_scale(opset: int) -> onnx.FunctionProto:
    """Return the function that gives the scale of each block of X, as QuantizeLinear takes it.

    Attributes of a call: ``axis``; ``sizes``, the size of a block; ``unit``, a scale of a block whose largest
    magnitude has the exponent 0; ``bound``, the fraction of a power of two above which a block takes twice
    the scale. Scales are from 2^-127 to 2^127.
    """
    head = f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {BLOCK_SCALE} <axis, sizes, unit, bound>'
    return onnx.parser.parse_function(f"{head} (X) => (Y) {{ {_BODY} }}")
