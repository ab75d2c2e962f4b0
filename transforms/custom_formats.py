"""Number formats that a scheme defines: a block format of the table with other attributes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any

import ops
from ops.formats import BFP, MX
from transforms.legal_keys import refuse_unknown

_EXPONENT_BITS = 8  # of a block
_LONGEST_BLOCK = 2**31 - 1
_PRIME: Mapping[str, Any] = MappingProxyType({"sub_block_size": 2, "sub_block_shift_bits": 1})
_ELEMENTS = {row.attributes["element_dtype"]: row for row in ops.FORMATS.values() if row.op == MX}

_LEGAL: Mapping[str, Mapping[str, Container[Any]]] = {
    BFP: {
        "bit_width": range(10, 25),
        "block_size": range(1, _LONGEST_BLOCK + 1),
        "rounding_mode": range(3),
        "bfp_method": ("to_bfp", "to_bfp_prime"),
        "sub_block_size": range(1, _LONGEST_BLOCK + 1),
        "sub_block_shift_bits": range(9),
    },
    MX: {
        "element_dtype": tuple(_ELEMENTS),
        "block_size": range(1, _LONGEST_BLOCK + 1),
        "rounding_mode": range(3),
        "scale_rule": ("floor", "ceil", "even", "rceil"),
    },
}


def make_format(name: str, definition: Mapping[str, Any]) -> ops.Format:
    """Return the format ``name`` defined by ``base``, a block format of the table, and attributes of its
    operator that replace the base's.

    Raises ValueError naming format and attribute for a name that is taken, a base that has no blocks, an
    attribute that the operator does not have or that has no effect, and a value that is not legal.
    """
    if name in ops.FORMATS or name in ("float32", "auto"):
        raise ValueError(f"format '{name}' cannot be defined anew, the name is taken")
    base = _base(name, definition)
    changes = {key: value for key, value in definition.items() if key != "base"}
    attributes = {**base.attributes, **changes}
    if base.op == BFP:
        attributes = _with_groups(attributes, changes)
    _check(name, base.op, attributes)
    return _ROW[base.op](name, MappingProxyType(attributes))


def _base(name: str, definition: Mapping[str, Any]) -> ops.Format:
    blocks = [row.name for row in ops.FORMATS.values() if row.op in _LEGAL]
    base = definition.get("base")
    if base not in blocks:
        given = "has no base" if base is None else f"has base {base!r}"
        raise ValueError(f"format '{name}' {given}, legal are the block formats {', '.join(blocks)}")
    return ops.FORMATS[str(base)]


def _with_groups(attributes: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the attributes of groups within a block, which one method has and the other has not."""
    if attributes.get("bfp_method", "to_bfp") != "to_bfp":
        return {**_PRIME, **attributes}
    return {key: value for key, value in attributes.items() if key in changes or key not in _PRIME}


def _check(name: str, op: str, attributes: Mapping[str, Any]) -> None:
    legal = dict(_LEGAL[op])
    if op == BFP and attributes.get("bfp_method", "to_bfp") == "to_bfp":
        legal = {key: values for key, values in legal.items() if key not in _PRIME}
    for key, value in attributes.items():
        refuse_unknown(key, legal, f"format '{name}': attribute")
        if type(value) not in (int, str) or value not in legal[key]:
            raise ValueError(f"format '{name}': {key} is {value!r}, legal are {_text(legal[key])}")
    if attributes["block_size"] % attributes.get("sub_block_size", 1):
        raise ValueError(
            f"format '{name}': sub_block_size is {attributes['sub_block_size']}, "
            f"legal are divisors of block_size {attributes['block_size']}"
        )


def _text(legal: Container[Any]) -> str:
    if isinstance(legal, range):
        return f"integers from {legal[0]} to {legal[-1]}"
    assert isinstance(legal, tuple)
    return ", ".join(map(repr, legal))


def _bfp(name: str, attributes: Mapping[str, Any]) -> ops.Format:
    """A row of the table: a sign and the mantissa for each element, its share of exponent and shifts."""
    width, block = attributes["bit_width"], attributes["block_size"]
    shifts = attributes.get("sub_block_shift_bits", 0) / attributes.get("sub_block_size", 1)
    bits = width - _EXPONENT_BITS + _EXPONENT_BITS / block + shifts
    return ops.Format(name, BFP, bits, 2.0**128 - 2.0 ** (137 - width), attributes)


def _mx(name: str, attributes: Mapping[str, Any]) -> ops.Format:
    known = _ELEMENTS[attributes["element_dtype"]]
    element = known.bits - _EXPONENT_BITS / known.block
    return ops.Format(
        name, MX, element + _EXPONENT_BITS / attributes["block_size"], known.highest, attributes
    )


_ROW = {BFP: _bfp, MX: _mx}
