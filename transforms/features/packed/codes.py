"""Encode numbers in the codes of a block format, and decode them.

A number is value[code] * 2^-shift * 2^(exponent - 127 - unit), with a one-byte exponent for each block and,
in Microexponents, a shift for each sub-block. Numbers without a code, such as NaN, or -128 steps in two's
complement (whose code stands for -0 here), are stored beside the codes with their indices.
:mod:`transforms.features.packed.code_layout` says how codes lie in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ops.elements import ELEMENTS, Element
from ops.formats import MX, Format
from ops.subnormals import keeps_subnormals
from transforms.features.packed.code_layout import BIAS, WIDEST, BlockLayout, Bytes, Codes, Float32


@dataclass(frozen=True)
class Encoded:
    """Flat ``codes``, ``exponents`` of blocks, ``shifts`` of sub-blocks, and ``places`` without a code."""

    codes: Bytes
    exponents: Bytes
    shifts: Bytes
    places: NDArray[np.int64]


def codes_of(fmt: Format) -> Codes | None:
    """Return the codes of a block format, or None if its elements have more than 8 bits."""
    attributes = fmt.attributes
    if fmt.op == MX:
        return _element_codes(str(attributes["element_dtype"]))
    prime = attributes.get("bfp_method", "to_bfp") != "to_bfp"
    shift_bits = int(attributes["sub_block_shift_bits"]) if prime else 0
    complement = bool(attributes.get("use_compiler_version_cpu_kernel", 0))
    return _step_codes(int(attributes["bit_width"]) - 9, shift_bits, complement)


@lru_cache
def _step_codes(mantissa: int, shift_bits: int, complement: bool) -> Codes | None:
    if mantissa + 1 > WIDEST:
        return None
    steps = np.arange(2**mantissa, dtype=np.float32)
    if complement:
        return Codes(mantissa + 1, _complement(steps), mantissa - 1, detour=-1, is_complement=True)
    return Codes(mantissa + 1, np.concatenate([steps, -steps]), mantissa - 1, shift_bits=shift_bits)


@lru_cache
def _element_codes(name: str) -> Codes:
    element = ELEMENTS[name]
    if not element.exponent_bits:
        steps = _complement(np.arange(128, dtype=np.float32))
        return Codes(8, steps, element.mantissa_bits, detour=-1, is_complement=True)
    numbers = _magnitudes(element)
    bits = 1 + element.exponent_bits + element.mantissa_bits
    return Codes(bits, np.concatenate([numbers, -numbers]), element.largest_exponent, detour=1)


def _complement(steps: Float32) -> Float32:
    """Return the values of two's complement, with -0 for the code of the lowest number."""
    return np.concatenate([steps, np.array([-0.0], np.float32), -steps[:0:-1]])


def _magnitudes(element: Element) -> Float32:
    """Return the values of codes without a sign, ascending; NaN for codes that are not numbers."""
    codes = np.arange(2 ** (element.exponent_bits + element.mantissa_bits))
    exponent, rest = codes >> element.mantissa_bits, codes % 2**element.mantissa_bits
    mantissa = rest / 2**element.mantissa_bits + (exponent > 0)
    numbers = np.ldexp(mantissa, np.maximum(exponent, 1) - element.bias)
    return np.where(numbers <= element.largest, numbers, np.nan).astype(np.float32)


@keeps_subnormals
def encode(values: Float32, codes: Codes, layout: BlockLayout) -> Encoded:
    """Encode numbers; ``places`` are the flat indices of those that do not decode to the same bits."""
    cut = np.ascontiguousarray(values, np.float32).reshape(layout.cut)
    encoded = _encode(cut, codes, layout)
    wrong = _differ(encoded, cut, codes, layout)
    if codes.detour and wrong.any():
        bad = np.logical_or.reduceat(wrong, layout.starts(layout.block), axis=1)
        exponents = np.clip(encoded.exponents.astype(int) + codes.detour * bad, 0, 255).astype(np.uint8)
        other = _encode(cut, codes, layout, exponents)
        better = _count(_differ(other, cut, codes, layout), layout) < _count(wrong, layout)
        encoded = _encode(cut, codes, layout, np.where(better, exponents, encoded.exponents))
        wrong = _differ(encoded, cut, codes, layout)
    return Encoded(encoded.codes, encoded.exponents, encoded.shifts, np.flatnonzero(wrong))


@keeps_subnormals
def decode(encoded: Encoded, codes: Codes, layout: BlockLayout) -> Float32:
    """Decode to numbers in the shape ``layout.cut``; those at ``places`` are wrong."""
    numbers = codes.values[encoded.codes].reshape(layout.cut)
    with np.errstate(all="ignore"):
        if codes.shift_bits:
            _scale(numbers, codes.shift_powers[encoded.shifts], layout, layout.group)
        _scale(numbers, codes.powers[encoded.exponents], layout, layout.block)
    return numbers


def _scale(numbers: Float32, powers: Float32, layout: BlockLayout, size: int) -> None:
    """Multiply numbers in place by the powers of their blocks of a size."""
    outer, number, elements, inner = layout.wide(size)
    if number * elements == layout.cut[1]:
        blocks = numbers.reshape(outer, number, elements, inner)
        np.multiply(blocks, powers.reshape(outer, number, 1, inner), out=blocks)
    else:
        np.multiply(numbers, layout.spread(powers, size), out=numbers)


def _encode(cut: Float32, codes: Codes, layout: BlockLayout, exponents: Bytes | None = None) -> Encoded:
    element_exponents = ((cut.view(np.uint32) >> 23) & 0xFF).astype(np.uint8)
    element_exponents[element_exponents == 255] = 0
    if exponents is None:
        exponents = np.maximum.reduceat(element_exponents, layout.starts(layout.block), axis=1)
    power = layout.spread(exponents, layout.block).astype(np.int32)
    shifts = np.empty(0, np.uint8)
    if codes.shift_bits:
        tops = np.maximum.reduceat(element_exponents, layout.starts(layout.group), axis=1)
        of_groups = power[:, layout.starts(layout.group)]
        shifts = np.minimum(of_groups - tops, 2**codes.shift_bits - 1).astype(np.uint8)
        power = power - layout.spread(shifts, layout.group)
    with np.errstate(all="ignore"):
        units = np.ldexp(cut, BIAS + codes.unit - power)
    return Encoded(_places_of(units.reshape(-1), codes), exponents, shifts, np.empty(0, np.int64))


def _places_of(units: Float32, codes: Codes) -> Bytes:
    """Return the code of each number, or another number's code where it has none."""
    half = 1 << (codes.bits - 1)
    magnitudes = codes.values[:half]
    magnitudes = magnitudes[np.isfinite(magnitudes)]
    sizes = np.abs(units)
    if magnitudes[-1] == len(magnitudes) - 1:  # whole numbers
        with np.errstate(invalid="ignore"):
            place = np.fmin(sizes, magnitudes[-1]).astype(np.int16)
    else:
        place = np.minimum(np.searchsorted(magnitudes, sizes), len(magnitudes) - 1).astype(np.int16)
    negative = np.where(place == 0, half, 2 * half - place) if codes.is_complement else place + half
    return np.where(np.signbit(units), negative, place).astype(np.uint8)


def _differ(encoded: Encoded, cut: Float32, codes: Codes, layout: BlockLayout) -> NDArray[np.bool_]:
    return decode(encoded, codes, layout).view(np.uint32) != cut.view(np.uint32)


def _count(wrong: NDArray[np.bool_], layout: BlockLayout) -> NDArray[np.int64]:
    return np.add.reduceat(wrong.astype(np.int64), layout.starts(layout.block), axis=1)
