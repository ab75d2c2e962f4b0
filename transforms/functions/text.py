"""Building blocks of function bodies as text of ``onnx.parser``, and the frame of those that round in blocks.

The power of two at or below a number is |q - (1 - u) q| with q = (1 / 2u + 1) times the number and u half a
unit in the last place of 1 (S. M. Rump, T. Ogita, S. Oishi, Accurate floating-point summation I, algorithm
3.5): a few basic operations without logarithm, correct for every number that neither overflows nor
underflows. (1 - u) q is written as q - u q, because ONNX Runtime drops products with constants close to 1.

The arithmetic in blocks follows :mod:`ops.reference`: a power of two per block, elements in units of it,
clamped and then rounded (in this order infinities, which are passed through at the end, are not rounded).
Full-size tensors are float32, in which every step is exact; those with one number per block are float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Numbers = float | Sequence[float] | Sequence[Sequence[float]]


def constant(name: str, kind: str, numbers: Numbers) -> str:
    """Return the line that defines a constant with an element type: a number, a vector or a matrix."""
    array = np.asarray(numbers)
    shape = f"[{', '.join(map(str, array.shape))}]" if array.shape else ""
    flat = array.reshape(-1).tolist()
    return f"{name} = Constant <value = {kind}{shape} {{{', '.join(map(repr, flat))}}}> ()\n"


def attribute(name: str, *, key: str | None = None) -> str:
    """Return the line that reads an integer attribute of the call."""
    return f"{name} = Constant <value_int: int = @{key or name}> ()\n"


def choice(name: str, key: str, legal: Sequence[Sequence[str]]) -> str:
    """Return lines for a vector with 1 at the place of a string attribute's value, among groups of aliases.

    No other operator reads strings before opset 19.
    """
    words = ", ".join(f'"{word}"' for words in legal for word in words)
    places = ", ".join(str(place) for place, words in enumerate(legal) for _ in words)
    return f"""{name}_text = Constant <value_string: string = @{key}> ()
{name}_texts = Reshape({name}_text, one)
{name} = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0,
    pool_strings = [{words}], ngram_counts = [0], ngram_indexes = [{places}]> ({name}_texts)
"""


def either(result: str, condition: str, then: str, otherwise: str) -> str:
    """Return an If on a condition that is constant in a model, so that runtimes fold it."""
    return f"""{result} = If ({condition}) <
    then_branch = {result}_then () => ({result}_a) {{ {then} }},
    else_branch = {result}_else () => ({result}_b) {{ {otherwise} }}>
"""


def power_of_two(result: str, number: str, kind: str) -> str:
    """Return lines for the power of two at or below numbers of a type; 0 gives 0."""
    digits = {"float": 24, "double": 53}[kind]
    return f"""{constant(f"{result}_scale", kind, 2.0 ** (digits - 1) + 1)}{
        constant(f"{result}_last", kind, 2.0**-digits)
    }{result}_q = Mul({number}, {result}_scale)
{result}_u = Mul({result}_q, {result}_last)
{result}_r = Sub({result}_q, {result}_u)
{result}_s = Sub({result}_q, {result}_r)
{result} = Abs({result}_s)
"""


def rounded(result: str, number: str) -> str:
    """Return lines that round to integers, ties by ``rounding_mode``. The sign of a zero is kept."""
    r = result
    ties = f"""{r}_even = Round({number})
{r}_rest = Sub({number}, {r}_even)
{r}_far = Abs({r}_rest)
{r}_tie = Equal({r}_far, half)
{r}_sign = Sign({number})
{r}_step = Mul({r}_sign, half)
{r}_away = Add({number}, {r}_step)
{r}_up = Ceil({number})
{r}_other = Where(ties_up, {r}_up, {r}_away)
{r}_change = Sub({r}_even, {r}_other)
{r}_changes = Where({r}_tie, {r}_change, nothing)
{r}_b = Sub({r}_even, {r}_changes)"""
    return either(result, "ties_even", f"{r}_a = Round({number})", ties)


_LARGEST, _LEAST_POWER = (2 - 2.0**-23) * 2.0**127, 2.0**-127

START = (
    constant("zero", "int64", [0])
    + constant("one", "int64", [1])
    + constant("two", "int64", [2])
    + constant("last", "int64", [2**63 - 1])
    + constant("nothing", "float", 0.0)
    + constant("half", "float", 0.5)
    + constant("largest", "float", _LARGEST)
    + constant("mode_even", "int64", 2)
    + constant("mode_up", "int64", 1)
    + attribute("rounding_mode")
    + """ties_even = Equal(rounding_mode, mode_even)
ties_up = Equal(rounding_mode, mode_up)
"""
)

SIZES = (
    attribute("axis_attribute", key="axis")
    + constant("group_axis", "int64", [1])
    + constant("block_axis", "int64", [0])
    + constant("rest", "int64", [-1])
    + constant("both_axes", "int64", [0, 1])
    + """shape = Shape(X)
rank = Shape(shape)
rank_or_one = Max(rank, one)
missing = Sub(rank_or_one, rank)
padding_shape = Slice(one, zero, missing)
dims = Concat <axis = 0> (shape, padding_shape)
axis_given = Reshape(axis_attribute, one)
is_flat = Less(rank, two)
axis = Where(is_flat, zero, axis_given)
length = Gather(dims, axis)
place = Mod(axis, rank_or_one)
after = Add(place, one)
dims_before = Slice(dims, zero, place)
dims_after = Slice(dims, after, last)
dims_before_one = Concat <axis = 0> (one, dims_before)
dims_after_one = Concat <axis = 0> (one, dims_after)
outer = ReduceProd <keepdims = 1> (dims_before_one)
inner = ReduceProd <keepdims = 1> (dims_after_one)
some = Max(length, one)
group = Min(group_size, some)
group_less = Sub(group, one)
some_more = Add(some, group_less)
most_groups = Div(some_more, group)
most = Mul(most_groups, group)
block = Min(block_size, most)
block_less = Sub(block, one)
length_more = Add(length, block_less)
number = Div(length_more, block)
groups = Div(block, group)
padded = Mul(number, block)
pad = Sub(padded, length)
pads = Concat <axis = 0> (zero, zero, zero, zero, pad, zero)
fibre_shape = Concat <axis = 0> (outer, length, inner)
padded_shape = Concat <axis = 0> (outer, padded, inner)
block_shape = Concat <axis = 0> (rest, block, inner)
last_shape = Concat <axis = 0> (block, rest, inner)
flat_shape = Concat <axis = 0> (groups, group, rest)
fibres_size = Mul(outer, length)
size = Mul(fibres_size, inner)
is_many = Greater(size, one)
"""
)
"""The sizes of X split into blocks."""

# Blocks come last: adjacent numbers in memory then belong to different blocks, in long rows for operators.
_CUT = """fibres = Reshape(wide, fibre_shape)
padded_fibres = Pad(fibres, pads)
blocks = Reshape(padded_fibres, block_shape)
blocks_last = Transpose <perm = [1, 0, 2]> (blocks)
x = Reshape(blocks_last, flat_shape)
magnitude = Abs(x)
is_finite = LessOrEqual(magnitude, largest)
"""

POWERS = (
    constant("least_power", "double", _LEAST_POWER)
    + """counted = Where(counts, magnitude, nothing)
group_top = MAX_OF_GROUPS(counted)
group_top_wide = Cast <to = 11> (group_top)
"""
    + power_of_two("group_power_found", "group_top_wide", "double")
    + """group_power = Max(group_power_found, least_power)
block_power = MAX_OF_BLOCKS(group_power)
"""
)
"""The powers of two of groups and blocks, in float64."""

_JOIN = """y_last = Reshape(y, last_shape)
joined_blocks = Transpose <perm = [1, 0, 2]> (y_last)
joined_fibres = Reshape(joined_blocks, padded_shape)
cut_fibres = Slice(joined_fibres, zero, length, one)
result_a = Reshape(cut_fibres, shape)
"""


def blockwise(rounding: str) -> str:
    """Return a body's end around lines from x to y; a tensor of at most one number is its own result."""
    return (
        SIZES
        + either("result", "is_many", _CUT + rounding + _JOIN, "result_b = Identity(wide)")
        + "Y = CAST_LIKE(result, X)\n"
    )


def vector(name: str, key: str) -> str:
    """Return the lines that read an integer attribute of the call as a vector of one number."""
    return attribute(f"{name}_attribute", key=key) + f"{name} = Reshape({name}_attribute, one)\n"


def passed(result: str) -> str:
    """Return lines for the rounded blocks, in which numbers that do not count are unchanged.

    ONNX Runtime's Where turns -0 into +0; adding the difference does not.
    """
    return f"""opposite = Neg(x)
extra = Where(counts, nothing, opposite)
{result} = Sub(product, extra)
"""
