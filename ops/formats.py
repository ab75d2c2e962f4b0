"""The one table of number formats.

To add a format, add a row. A row names the operator that rounds to the format in a model, and its attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    "uint2": 25,
    "int2": 26,
}


@dataclass(frozen=True)
class Format:
    """A number format.

    ``bits`` per element include its share of a block's exponents. ``block`` is the number of elements with
    one exponent (1: none). ``highest`` is the largest number at the largest scale, for integers at scale 1.
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
        """Whether elements are integers, which need a scale."""
        return "int" in self.name and self.op == LINEAR

    @property
    def is_float(self) -> bool:
        """Whether elements have a float type, which needs no scale."""
        return self.op == LINEAR and not self.is_integer

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
        """The dtype of an array of such numbers. Raises ValueError for block formats, which have none."""
        if self.op != LINEAR:
            raise ValueError(f"format '{self.name}' has no element type: it is a block format")
        return np.dtype(getattr(ml_dtypes, self.name, self.name))


@dataclass(frozen=True)
class Attribute:
    """An attribute of a block operator: its default, its legal values, and aliases of these."""

    default: int | str
    legal: Sequence[int] | Sequence[str]
    aliases: Mapping[int | str, int | str] = field(default_factory=dict)


_BLOCK_SIZES = range(1, 2**31)
_SWITCH = range(2)
_ELEMENT_BITS = {"int8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp6_e3m2": 6, "fp6_e2m3": 6, "fp4_e2m1": 4}
_HIGHEST = {
    "int8": 127 / 64,
    "fp6_e2m3": 1.875,
    "fp4_e2m1": 1.5,
}  # over the power of two below; 1.75 for others

ATTRIBUTES: Mapping[str, Mapping[str, Attribute]] = MappingProxyType(
    {
        BFP: {
            "bit_width": Attribute(16, range(10, 25)),
            "block_size": Attribute(8, _BLOCK_SIZES),
            "rounding_mode": Attribute(0, range(3)),
            "bfp_method": Attribute(
                "to_bfp", ("to_bfp", "to_bfp_prime"), {"to_bfp_prime_shared": "to_bfp_prime"}
            ),
            "sub_block_size": Attribute(2, _BLOCK_SIZES),
            "sub_block_shift_bits": Attribute(1, range(9)),
            "convert_to_bfloat_before_bfp": Attribute(0, _SWITCH),
            "use_compiler_version_cpu_kernel": Attribute(0, _SWITCH),
        },
        MX: {
            "element_dtype": Attribute("int8", tuple(_ELEMENT_BITS)),
            "block_size": Attribute(32, _BLOCK_SIZES),
            "rounding_mode": Attribute(0, range(3), {7: 0}),
            "scale_rule": Attribute("floor", ("floor", "ceil", "even", "rceil")),
        },
    }
)
"""The attributes of the block operators except for the axis, as the native code reads them."""

GROUPS = frozenset({"sub_block_size", "sub_block_shift_bits"})
"""The attributes of Microexponents that ordinary block floating point ignores."""
_MANNERS = frozenset(
    {"rounding_mode", "convert_to_bfloat_before_bfp"}
)  # how numbers are rounded, not which exist


def block_format(name: str, op: str, attributes: Attributes) -> Format:
    """Return the format of a block operator with attributes; only methods and rules may be missing.

    Bits are those of an element plus its share of the block's exponent and of shifts.
    """
    attributes, block = MappingProxyType({**attributes}), attributes["block_size"]
    if op == MX:
        element = attributes["element_dtype"]
        highest = _HIGHEST.get(element, 1.75) * 2.0**127
        return Format(name, op, _ELEMENT_BITS[element] + 8 / block, highest, attributes)
    width, is_prime = attributes["bit_width"], attributes.get("bfp_method", "to_bfp") != "to_bfp"
    shifts = attributes["sub_block_shift_bits"] / attributes["sub_block_size"] if is_prime else 0
    return Format(name, op, width - 8 + 8 / block + shifts, 2.0**128 - 2.0 ** (137 - width), attributes)


def _bfp(name: str, bit_width: int, block_size: int, **more: Any) -> Format:
    return block_format(
        name, BFP, {"bit_width": bit_width, "block_size": block_size, "rounding_mode": 2, **more}
    )


def _microexponent(name: str, bit_width: int) -> Format:
    prime = {"bfp_method": "to_bfp_prime", "sub_block_size": 2, "sub_block_shift_bits": 1}
    return _bfp(name, bit_width, 16, **prime)


def _mx(name: str, element_dtype: str) -> Format:
    return block_format(name, MX, {"element_dtype": element_dtype, "block_size": 32, "rounding_mode": 2})


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        fmt.name: fmt
        for fmt in (
            Format("int2", LINEAR, 2, 1),
            Format("uint2", LINEAR, 2, 3),
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
            _bfp("bfp16", 16, 8),
            _microexponent("mx4", 11),
            _microexponent("mx6", 13),
            _microexponent("mx9", 16),
            _mx("mxint8", "int8"),
            _mx("mxfp8_e4m3", "fp8_e4m3"),
            _mx("mxfp8_e5m2", "fp8_e5m2"),
            _mx("mxfp6_e3m2", "fp6_e3m2"),
            _mx("mxfp6_e2m3", "fp6_e2m3"),
            _mx("mxfp4", "fp4_e2m1"),
        )
    }
)


def get_format(name: str | Format) -> Format:
    """Return the row of the table, or a format unchanged; raise ValueError naming all formats."""
    if isinstance(name, Format):
        return name
    if name not in FORMATS:
        raise ValueError(f"format '{name}' is unknown, legal are {', '.join(FORMATS)}")
    return FORMATS[name]


def format_of(op: str, attributes: Attributes) -> Format | None:
    """Return the format that a node rounds to by its own attributes, or None unless it is a block operator.

    The result has all attributes that matter, with the operator's defaults for those left out:
    ``ops.quantize_dequantize`` then computes what the node computes. The name is that of the table if the
    numbers are the same, whatever the rounding; otherwise the operator and its attributes that differ from
    the defaults. Axis and unknown attributes are ignored.

    Raises ValueError naming attribute and value if the operator refuses them.
    """
    if op not in ATTRIBUTES:
        return None
    resolved = _resolve(op, attributes)
    numbers = _numbers(op, resolved)
    for fmt in FORMATS.values():
        if fmt.op == op and _numbers(op, _resolve(op, fmt.attributes)) == numbers:
            return block_format(fmt.name, op, resolved)
    unusual = [f"{key}={value}" for key, value in numbers.items() if value != ATTRIBUTES[op][key].default]
    return block_format(" ".join([op, *unusual]), op, resolved)


def _resolve(op: str, attributes: Attributes) -> dict[str, Any]:
    """Return all attributes that matter, with defaults, and with one name for each value."""
    resolved = {}
    for key, attribute in ATTRIBUTES[op].items():
        value = attributes.get(key, attribute.default)
        value = int(value) if isinstance(value, np.integer) else value
        resolved[key] = attribute.aliases.get(value, value) if type(value) in (int, str) else value
        check_attribute(op, key, resolved[key], attribute.legal)
    is_plain = resolved.get("bfp_method") == "to_bfp"
    if resolved.get("use_compiler_version_cpu_kernel") and not (is_plain and resolved["bit_width"] == 16):
        needs = "legal is 0 unless bfp_method is 'to_bfp' and bit_width is 16"
        raise ValueError(f"{op}: use_compiler_version_cpu_kernel is 1, {needs}")
    if is_plain:
        return {key: value for key, value in resolved.items() if key not in GROUPS}
    check_groups(op, resolved)
    return resolved


def check_attribute(subject: str, key: str, value: object, legal: Sequence[int] | Sequence[str]) -> None:
    """Raise ValueError naming subject, attribute and value unless it is a legal integer or text."""
    if type(value) in (int, str) and value in legal:
        return
    is_range = isinstance(legal, range)
    words = f"integers from {legal[0]} to {legal[-1]}" if is_range else ", ".join(map(repr, legal))
    raise ValueError(f"{subject}: {key} is {value!r}, legal are {words}")


def check_groups(subject: str, attributes: Attributes) -> None:
    """Raise ValueError if there are groups that do not divide blocks."""
    group, block = attributes.get("sub_block_size", 1), attributes["block_size"]
    if block % group:
        raise ValueError(f"{subject}: sub_block_size is {group}, legal are divisors of block_size {block}")


def _numbers(op: str, resolved: Attributes) -> dict[str, Any]:
    """Return the attributes that determine which numbers exist."""
    return {key: value for key, value in resolved.items() if key not in _MANNERS}
