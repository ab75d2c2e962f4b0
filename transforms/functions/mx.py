"""MXQuantizeDequantize in standard operators."""

from __future__ import annotations

from ops.elements import ELEMENTS, Element
from ops.formats import ATTRIBUTES, MX
from transforms.functions.blocks import POWERS, START, blockwise, passed, vector
from transforms.functions.text import choice, constant, either, power_of_two, rounded

_RULES = ATTRIBUTES[MX]["scale_rule"].legal


def body() -> str:
    """Return the body of MXQuantizeDequantize."""
    elements = list(ELEMENTS.values())
    columns = {
        "step": [2.0 ** -(e.largest_exponent + e.mantissa_bits) for e in elements],
        "least": [2.0 ** (1 - e.bias + e.mantissa_bits) for e in elements],
        "fraction": [2.0**-e.mantissa_bits for e in elements],
        "high": [e.largest * 2.0**e.mantissa_bits for e in elements],
        "low": [_lowest(e) * 2.0**e.mantissa_bits for e in elements],
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
        + blockwise(_units())
    )


def _units() -> str:
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


def _lowest(element: Element) -> float:
    return -element.largest if element.exponent_bits else -2.0  # int8 is two's complement


def scale_bound(element: Element, rule: str) -> float:
    """Return the fraction of a power of two above which a block takes the next one, by a scale rule."""
    return {
        "floor": 2.0,
        "ceil": 1.0,
        "even": 2 - 2.0 ** -(element.mantissa_bits + 1) - 2.0**-23,
        "rceil": element.largest / 2.0**element.largest_exponent,
    }[rule]
