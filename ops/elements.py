"""The element types of OCP Microscaling as numbers, from the tables of the specification."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Element:
    """An element type of Microscaling.

    ``largest_exponent`` and ``largest`` are the exponent and the value of the largest number.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest_exponent: int
    largest: float


ELEMENTS = {
    "int8": Element(0, 6, 0, 0, 127 / 64),
    "fp8_e4m3": Element(4, 3, 7, 8, 448.0),
    "fp8_e5m2": Element(5, 2, 15, 15, 57344.0),
    "fp6_e3m2": Element(3, 2, 3, 4, 28.0),
    "fp6_e2m3": Element(2, 3, 1, 2, 7.5),
    "fp4_e2m1": Element(2, 1, 1, 2, 6.0),
}
