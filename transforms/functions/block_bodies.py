"""BFPQuantizeDequantize and MXQuantizeDequantize in standard operators."""

from __future__ import annotations

from ops.elements import ELEMENTS, Element
from ops.formats import ATTRIBUTES, BFP, MX
from transforms.functions.text import (
    POWERS,
    START,
    attribute,
    blockwise,
    choice,
    constant,
    either,
    passed,
    power_of_two,
    rounded,
    vector,
)

_LEAST_NORMAL = 2.0**-126
_WIDTHS, _SHIFTS = (
    [int(value) for value in ATTRIBUTES[BFP][key].legal] for key in ("bit_width", "sub_block_shift_bits")
)
_RULES = ATTRIBUTES[MX]["scale_rule"].legal


def bfp() -> str:
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
        + blockwise(_bfp_units())
    )


def _bfp_units() -> str:
    """Return lines from blocks x to rounded blocks y."""
    prime_counts = "normal = GreaterOrEqual(magnitude, least_normal) counts_a = And(is_finite, normal)"
    poison = (
        """zeros = Mul(x, nothing) sums = ReduceSum <keepdims = 1> (zeros, both_axes) poison_a = Abs(sums)"""
    )
    flushed = "kept = Cast <to = 1> (counts) y_a = Mul(product, kept)"
    return (
        # the numbers that determine the exponent of a block, and the spread of NaN and infinities in it
        constant("least_normal", "float", _LEAST_NORMAL)
        + either("counts", "is_prime", prime_counts, "counts_b = Identity(is_finite)")
        + either("poison", "is_prime", poison, "poison_b = Identity(nothing)")
        + POWERS
        # the grid: its step, the shift of a sub-block, and its ends
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
        # numbers in units of the step, rounded and scaled back
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
    """Return lines for the powers of two's complement: doubled if a positive number needs it."""
    return f"""positive = Where(counts, x, nothing)
most_positive = MAX_OF_GROUPS(positive)
first_unit_wide = Mul(shifted_power, step)
first_unit = Cast <to = 1> (first_unit_wide)
first_v = Div(most_positive, first_unit)
{rounded("needs", "first_v")}
grows = GreaterOrEqual(needs, range)
twice = Mul(shifted_power, two_wide)
power_a = Where(grows, twice, shifted_power)"""


def mx() -> str:
    """Return the body of MXQuantizeDequantize."""
    elements = list(ELEMENTS.values())
    columns = {
        "step": [2.0 ** -(e.largest_exponent + e.mantissa_bits) for e in elements],
        "least": [2.0 ** (1 - e.bias + e.mantissa_bits) for e in elements],
        "fraction": [2.0**-e.mantissa_bits for e in elements],
        "high": [e.largest * 2.0**e.mantissa_bits for e in elements],
        "low": [  # int8 is two's complement
            (-e.largest if e.exponent_bits else -2.0) * 2.0**e.mantissa_bits for e in elements
        ],
        "floating": [float(e.exponent_bits > 0) for e in elements],
    }
    return (
        START
        + choice("element", "element_dtype", [[name] for name in ELEMENTS])
        + choice("rule", "scale_rule", [[str(name)] for name in _RULES])
        + "".join(
            constant(f"{name}s_of", "float", numbers) + f"{name} = MatMul(element, {name}s_of)\n"
            for name, numbers in columns.items()
        )
        + constant("bounds_of", "float", [[scale_bound(e, str(rule)) for rule in _RULES] for e in elements])
        + """bounds = MatMul(element, bounds_of)
bound = MatMul(bounds, rule)
is_floating = Greater(floating, half)
"""
        + vector("block_size", "block_size")
        + """group_size = Identity(block_size)
wide = Cast <to = 1> (X)
"""
        + blockwise(_mx_units())
    )


def _mx_units() -> str:
    """Return lines from blocks x to rounded blocks y."""
    floating = f"""{power_of_two("v_power", "v", "float")}above = Max(v_power, least)
v_step = Mul(above, fraction)
in_steps = Div(v, v_step)
steps = Round(in_steps)
r_a = Mul(steps, v_step)"""
    return (
        "counts = Identity(is_finite)\n"
        + POWERS
        + constant("two_wide", "double", 2.0)
        + """relative = Div(group_top_wide, block_power)
bound_wide = Cast <to = 11> (bound)
grows = Greater(relative, bound_wide)
twice = Mul(block_power, two_wide)
power = Where(grows, twice, block_power)
step_wide = Cast <to = 11> (step)
unit_wide = Mul(power, step_wide)
unit = Cast <to = 1> (unit_wide)
ratio = Div(x, unit)
v = Clip(ratio, low, high)
"""
        + either("r", "is_floating", floating, rounded("i", "v") + "r_b = Identity(i)")
        + "product = Mul(r, unit)\n"
        + passed("y")
    )


def scale_bound(element: Element, rule: str) -> float:
    """Return the fraction of a power of two above which a block takes the next one, by a scale rule."""
    return {
        "floor": 2.0,
        "ceil": 1.0,
        "even": 2 - 2.0 ** -(element.mantissa_bits + 1) - 2.0**-23,
        "rceil": element.largest / 2.0**element.largest_exponent,
    }[rule]
