"""The one table of number formats.

Adding a format is adding a row. A row names the operator that does the same in a model, and its attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

Attributes = Mapping[str, Any]  # of a node: integers and strings

LINEAR, BFP, MX = "ExtendedQuantizeLinear", "BFPQuantizeDequantize", "MXQuantizeDequantize"
FLOAT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10, np.dtype(ml_dtypes.bfloat16): 16}
LINEAR_TYPES = {
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "float16": 10,
    "uint32": 12,
    "bfloat16": 16,
    "uint4": 21,
    "int4": 22,
}


@dataclass(frozen=True)
class Format:
    """A number format.

    ``bits`` per element include its share of a block's exponents. ``block`` is the number of elements that
    share an exponent (1: none). ``highest`` is the largest number at the largest scale, for integers at
    scale 1.
    """

    name: str
    op: str
    bits: float
    highest: float
    attributes: Attributes = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @property
    def block(self) -> int:
        """The number of elements that share an exponent."""
        return int(self.attributes.get("block_size", 1))

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers that need a scale."""
        return "int" in self.name and self.op == LINEAR

    @property
    def is_signed(self) -> bool:
        """Whether there are negative numbers."""
        return not self.name.startswith("u")

    @property
    def lowest(self) -> float:
        """The lowest number, at the scale of ``highest``."""
        if self.is_integer:
            return -self.highest - 1 if self.is_signed else 0
        return -self.highest

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an array of such numbers. Raises ValueError for block formats, which have none."""
        if self.op != LINEAR:
            raise ValueError(f"format '{self.name}' is no type of array elements")
        return np.dtype(getattr(ml_dtypes, self.name, self.name))


def _bfp(name: str, bits: float, bit_width: int, block_size: int, **more: Any) -> Format:
    attributes = {"bit_width": bit_width, "block_size": block_size, "rounding_mode": 2, **more}
    return Format(name, BFP, bits, 2.0**128 - 2.0 ** (137 - bit_width), MappingProxyType(attributes))


def _microexponent(name: str, bits: float, bit_width: int) -> Format:
    prime = {"bfp_method": "to_bfp_prime", "sub_block_size": 2, "sub_block_shift_bits": 1}
    return _bfp(name, bits, bit_width, 16, **prime)


def _mx(name: str, bits: float, element_dtype: str, highest: float) -> Format:
    attributes = {"element_dtype": element_dtype, "block_size": 32, "rounding_mode": 2}
    return Format(name, MX, bits, highest * 2.0**127, MappingProxyType(attributes))


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        row.name: row
        for row in (
            Format("int4", LINEAR, 4, 7),
            Format("uint4", LINEAR, 4, 15),
            Format("int8", LINEAR, 8, 127),
            Format("uint8", LINEAR, 8, 255),
            Format("int16", LINEAR, 16, 32767),
            Format("uint16", LINEAR, 16, 65535),
            Format("int32", LINEAR, 32, 2**31 - 1),
            Format("uint32", LINEAR, 32, 2**32 - 1),
            Format("float16", LINEAR, 16, 65504),
            Format("bfloat16", LINEAR, 16, 3.3895313892515355e38),
            _bfp("bfp16", 9, 16, 8),
            _microexponent("mx4", 4, 11),
            _microexponent("mx6", 6, 13),
            _microexponent("mx9", 9, 16),
            _mx("mxint8", 8.25, "int8", 127 / 64),
            _mx("mxfp8_e4m3", 8.25, "fp8_e4m3", 1.75),
            _mx("mxfp8_e5m2", 8.25, "fp8_e5m2", 1.75),
            _mx("mxfp6_e3m2", 6.25, "fp6_e3m2", 1.75),
            _mx("mxfp6_e2m3", 6.25, "fp6_e2m3", 1.875),
            _mx("mxfp4", 4.25, "fp4_e2m1", 1.5),
        )
    }
)


def get_format(name: str) -> Format:
    """Return the row of the table, or raise ValueError naming all formats."""
    if name not in FORMATS:
        raise ValueError(f"format '{name}' is unknown, legal are {', '.join(FORMATS)}")
    return FORMATS[name]
