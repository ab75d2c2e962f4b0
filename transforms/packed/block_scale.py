"""The scales of Microscaling's blocks as a function in standard operators, for models in ONNX's own form."""

from __future__ import annotations

import onnx
import onnx.parser

from transforms.packed import DOMAIN
from transforms.twins.blocks import SIZES
from transforms.twins.text import constant, power_of_two

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
