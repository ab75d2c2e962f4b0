"""ExtendedQuantizeLinear and ExtendedDequantizeLinear in standard operators."""

from __future__ import annotations

from transforms.twins.text import attribute, constant, either

_TOPS = [2 ** (bits - signed) - 1 for bits in (8, 16, 32) for signed in (1, 0)]
_BEYOND_FLOAT16 = 65520.0  # the least number that float16 rounds to infinity, which bfloat16 does not

_CHANNELS = (
    constant("zero", "int64", [0])
    + constant("one", "int64", [1])
    + attribute("axis")
    + """shape = Shape(x)
rank = Shape(shape)
scale_count = Size(scale)
scale_size = Reshape(scale_count, one)
zero_count = Size(zero_point)
zero_size = Reshape(zero_count, one)
from_end = Less(axis, zero)
axis_more = Add(axis, rank)
place = Where(from_end, axis_more, axis)
after = Add(place, one)
inner = Sub(rank, after)
per_tensor = Equal(scale_size, one)
inner_or_none = Where(per_tensor, zero, inner)
ones = ConstantOfShape <value = int64[1] {1}> (inner_or_none)
channel_shape = Concat <axis = 0> (scale_size, ones)
channel_rank = Shape(channel_shape)
one_shape = ConstantOfShape <value = int64[1] {1}> (channel_rank)
one_zero_point = Equal(zero_size, one)
zero_shape = Where(one_zero_point, one_shape, channel_shape)
factor = Reshape(scale, channel_shape)
offset = Reshape(zero_point, zero_shape)
"""
)
"""Scale and zero point, shaped to broadcast against x."""


def quantize() -> str:
    """Return the body of ExtendedQuantizeLinear."""
    return (
        _CHANNELS
        + constant("half", "float", 0.5)
        + """ratio = Div(x, factor)
half_stored = CAST_LIKE(half, zero_point)
half_back = Cast <to = 1> (half_stored)
is_float = Equal(half_back, half)
"""
        + either("stored", "is_float", _to_float(), _to_integer())
        + "y = Reshape(stored, shape)\n"
    )


def _to_float() -> str:
    """Return lines that subtract the negative zero point, which keeps a zero's sign, and clip for float16."""
    return (
        constant("nothing", "float", 0.0)
        + constant("beyond", "float", _BEYOND_FLOAT16)
        + constant("most_float16", "float", 65504.0)
        + constant("infinity", "float", float("inf"))
        + """beyond_stored = CAST_LIKE(beyond, zero_point)
beyond_back = Cast <to = 1> (beyond_stored)
is_float16 = Equal(beyond_back, infinity)
most = Where(is_float16, most_float16, infinity)
least = Neg(most)
offset_float = Cast <to = 1> (offset)
opposite = Sub(nothing, offset_float)
shifted = Sub(ratio, opposite)
not_above = Min(shifted, most)
clipped = Max(not_above, least)
stored_a = CAST_LIKE(clipped, zero_point)"""
    )


def _to_integer() -> str:
    """Return lines that round, add and saturate in float64; a type's limits are found by wrapping around."""
    return (
        constant("tops", "int64", _TOPS)
        + constant("nothing", "double", 0.0)
        + """tops_stored = CAST_LIKE(tops, zero_point)
tops_back = Cast <to = 7> (tops_stored)
highest = ReduceMax <keepdims = 1> (tops_back)
beyond = Add(highest, one)
beyond_stored = CAST_LIKE(beyond, zero_point)
lowest = Cast <to = 7> (beyond_stored)
high = Cast <to = 11> (highest)
low = Cast <to = 11> (lowest)
wide = Cast <to = 11> (ratio)
is_nan = IsNaN(ratio)
number = Where(is_nan, nothing, wide)
rounded = Round(number)
offset_wide = Cast <to = 11> (offset)
shifted = Add(rounded, offset_wide)
not_above = Min(shifted, high)
saturated = Max(not_above, low)
stored_b = CAST_LIKE(saturated, zero_point)"""
    )


def dequantize() -> str:
    """Return the body of ExtendedDequantizeLinear: differences are exact in float64, then rounded once."""
    return (
        _CHANNELS.replace("Shape(x)", "Shape(y)")
        + """wide = Cast <to = 11> (y)
offset_wide = Cast <to = 11> (offset)
difference = Sub(wide, offset_wide)
number = Cast <to = 1> (difference)
product = Mul(number, factor)
x = Reshape(product, shape)
"""
    )
