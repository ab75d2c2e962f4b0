"""ExtendedQuantizeLinear and ExtendedDequantizeLinear in standard operators."""

from __future__ import annotations

from transforms.functions.text import attribute, constant, either

_PROBES = [-1, *(2 ** (bits - signed) - 1 for bits in (8, 16, 32) for signed in (1, 0))]
"""Integers that wrap around in a type: -1 to lowest + highest, and one of the others to highest."""

_BEYOND_FLOAT16 = 65520.0  # the least number that rounds to infinity in float16, but not in bfloat16

_CHANNELS = (
    constant("zero", "int64", [0])
    + constant("one", "int64", [1])
    + attribute("axis")
    + """shape = Shape(x)
rank = Shape(shape)
scale_dims = Shape(scale)
scale_dims_one = Concat <axis = 0> (one, scale_dims)
scale_size = ReduceProd <keepdims = 1> (scale_dims_one)
zero_dims = Shape(zero_point)
zero_dims_one = Concat <axis = 0> (one, zero_dims)
zero_size = ReduceProd <keepdims = 1> (zero_dims_one)
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
        + constant("half", "float", [0.5])
        + "ratio = Div(x, factor)\n"
        + _there_and_back("half", 1, 1)
        + "is_float = Equal(half_back, half)\n"
        + either("number", "is_float", _to_float(), _to_integer())
        + """stored = CAST_LIKE(number, zero_point)
y = Reshape(stored, shape)
"""
    )


def _there_and_back(name: str, kind: int, size: int) -> str:
    """Return lines that cast a vector of a size to the type of the zero point and back.

    A Gather stands between the casts, since ONNX Runtime drops pairs of lossy casts.
    """
    places = constant(f"{name}_places", "int64", range(size))
    return f"""{places}{name}_stored = CAST_LIKE({name}, zero_point)
{name}_same = Gather({name}_stored, {name}_places)
{name}_back = Cast <to = {kind}> ({name}_same)
"""


def _to_float() -> str:
    """Return lines that add the negated zero point, which keeps a zero's sign, and clip for float16."""
    return (
        constant("nothing", "float", 0.0)
        + constant("beyond", "float", [_BEYOND_FLOAT16])
        + constant("most_float16", "float", 65504.0)
        + constant("infinity", "float", float("inf"))
        + _there_and_back("beyond", 1, 1)
        + """is_float16 = Equal(beyond_back, infinity)
most = Where(is_float16, most_float16, infinity)
least = Neg(most)
offset_float = Cast <to = 1> (offset)
opposite = Sub(nothing, offset_float)
shifted = Sub(ratio, opposite)
not_above = Min(shifted, most)
clipped = Max(not_above, least)
number_a = Cast <to = 11> (clipped)"""
    )


def _to_integer() -> str:
    """Return lines that round, add and saturate in float64."""
    return (
        constant("probes", "int64", _PROBES)
        + constant("nothing", "double", 0.0)
        + _there_and_back("probes", 7, len(_PROBES))
        + """both_limits = Gather(probes_back, zero)
highest = ReduceMax <keepdims = 1> (probes_back)
lowest = Sub(both_limits, highest)
high = Cast <to = 11> (highest)
low = Cast <to = 11> (lowest)
wide = Cast <to = 11> (ratio)
is_nan = IsNaN(ratio)
defined = Where(is_nan, nothing, wide)
rounded = Round(defined)
offset_wide = Cast <to = 11> (offset)
shifted = Add(rounded, offset_wide)
not_above = Min(shifted, high)
number_b = Max(not_above, low)"""
    )


def dequantize() -> str:
    """Return the body of ExtendedDequantizeLinear: differences are exact in float64, then rounded once.

    It ends with a product by 1 from a sequence, which ONNX Runtime does not fold, just as it does not fold a
    native operator: for a constant weight it would otherwise choose kernels that add in another order.
    """
    return (
        _CHANNELS.replace("Shape(x)", "Shape(y)")
        + constant("unity", "float", 1.0)
        + constant("first", "int64", 0)
        + """sequence = SequenceConstruct(unity)
kept = SequenceAt(sequence, first)
wide = Cast <to = 11> (y)
offset_wide = Cast <to = 11> (offset)
difference = Sub(wide, offset_wide)
number = Cast <to = 1> (difference)
product = Mul(number, factor)
shaped = Reshape(product, shape)
x = Mul(shaped, kept)
"""
    )
