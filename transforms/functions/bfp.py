"""BFPQuantizeDequantize in standard operators: block floating point and Microexponents."""

from __future__ import annotations

from ops.formats import ATTRIBUTES, BFP
from transforms.functions.blocks import POWERS, START, blockwise, passed, vector
from transforms.functions.text import attribute, choice, constant, either, rounded

_LEAST_NORMAL = 2.0**-126
_WIDTHS, _SHIFTS = (
    [int(value) for value in ATTRIBUTES[BFP][key].legal] for key in ("bit_width", "sub_block_shift_bits")
)


def body() -> str:
    """Return the body of BFPQuantizeDequantize: block floating point and Microexponents."""
    return (
        START
        + choice("method", "bfp_method", [["to_bfp"], ["to_bfp_prime", "to_bfp_prime_shared"]])
        + constant("prime_place", "int64", 1)
        + """prime_flag = Gather(method, prime_place)
is_prime = Greater(prime_flag, half)
"""
        + vector("block_size", "block_size")
        + vector("sub_block_size", "sub_block_size")
        + "group_size = Where(is_prime, sub_block_size, block_size)\n"
        + attribute("bfloat_first", key="convert_to_bfloat_before_bfp")
        + "is_first = Cast <to = 9> (bfloat_first)\nplain = Cast <to = 1> (X)\n"
        + either(
            "wide",
            "is_first",
            "bf = Cast <to = 16> (plain) wide_a = Cast <to = 1> (bf)",
            "wide_b = Identity(plain)",
        )
        + blockwise(_units())
    )


def _units() -> str:
    """Return lines from blocks x to rounded blocks y."""
    prime_counts = "normal = GreaterOrEqual(magnitude, least_normal) counts_a = And(is_finite, normal)"
    poison = (
        """zeros = Mul(x, nothing) sums = ReduceSum <keepdims = 1> (zeros, both_axes) poison_a = Abs(sums)"""
    )
    flushed = "kept = Cast <to = 1> (counts) y_a = Mul(product, kept)"
    return (
        constant("least_normal", "float", _LEAST_NORMAL)
        + either("counts", "is_prime", prime_counts, "counts_b = Identity(is_finite)")
        + either("poison", "is_prime", poison, "poison_b = Identity(nothing)")
        + POWERS
        + constant("steps", "double", [2.0 ** (10 - width) for width in _WIDTHS])
        + constant("least_width", "int64", _WIDTHS[0])
        + constant("shifts", "double", [2.0 ** (1 - 2**bits) for bits in _SHIFTS])
        + constant("unity", "float", 1.0)
        + constant("one_wide", "double", 1.0)
        + constant("two_wide", "double", 2.0)
        + attribute("bit_width")
        + attribute("sub_block_shift_bits")
        + attribute("compiler", key="use_compiler_version_cpu_kernel")
        + """width_place = Sub(bit_width, least_width)
step = Gather(steps, width_place)
shift_given = Gather(shifts, sub_block_shift_bits)
shift = Where(is_prime, shift_given, one_wide)
lowest_power = Mul(block_power, shift)
shifted_power = Max(group_power, lowest_power)
range_wide = Div(two_wide, step)
range = Cast <to = 1> (range_wide)
high = Sub(range, unity)
compiler_float = Cast <to = 1> (compiler)
span = Add(high, compiler_float)
low = Neg(span)
is_compiler = Cast <to = 9> (compiler)
"""
        + either("power", "is_compiler", _grown(), "power_b = Identity(shifted_power)")
        + """unit_wide = Mul(power, step)
unit_clean = Cast <to = 1> (unit_wide)
unit = Add(unit_clean, poison)
ratio = Div(x, unit)
v = Clip(ratio, low, high)
"""
        + rounded("r", "v")
        + "product = Mul(r, unit)\n"
        + either("y", "is_prime", flushed, passed("y_b"))
    )


def _grown() -> str:
    """Return lines for the powers of two's complement: twice as high if a positive number needs it."""
    return f"""positive = Where(counts, x, nothing)
most_positive = MAX_OF_GROUPS(positive)
first_unit_wide = Mul(shifted_power, step)
first_unit = Cast <to = 1> (first_unit_wide)
first_v = Div(most_positive, first_unit)
{rounded("needs", "first_v")}
grows = GreaterOrEqual(needs, range)
twice = Mul(shifted_power, two_wide)
power_a = Where(grows, twice, shifted_power)"""
