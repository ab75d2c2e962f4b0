"""Check the values of a scheme's keys, and of the keys of its tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Self

from ops.formats import Format
from ops.legal_names import did_you_mean, refuse_unknown
from ops.registration import AMD_DOMAIN, DOMAIN

METHODS = ("MinMax", "Entropy", "Percentile", "MSE", "Extrapolated", "Wide")
"""Methods for the range of a tensor."""

_HEADROOM_BITS = 16
"""Bits from which on larger steps cost less than clipping unseen numbers."""

FULL_RANGE = PADDED, FREE, OFF = ("padded", "free", "off")
"""Which non-negative int8 tensors may use the full range in tuning: all, with a Pad before a Conv that pads
and a Sub for inputs and means; only those that need no additional node; none."""

SATURATION = AVOID, IN_PLACE, IGNORE = ("avoid", "in_place", "ignore")
"""How to avoid saturating pairs of 8-bit products (:mod:`ops.pair_sums`): also by reordering channels; only
by the weights; not at all."""

_LEGAL: Mapping[str, tuple[object, ...]] = {
    "block_size": (0, 16, 32, 64, 128, 256),
    "other": ("auto", "float32", "bfloat16", "float16"),
    "calibrate_method": (*METHODS, "auto"),
    "scale": ("float", "power_of_two"),
    "weight_method": ("auto", "MinMax", "MSE", "WeightedMSE"),
    "saturation": SATURATION,
    "qdq_domain": ("", "com.microsoft"),
    "domain": (DOMAIN, AMD_DOMAIN),
    "bfloat16_as": ("qdq", "cast"),
    "dynamic_ranges": ("row", "tensor"),
}
_OPSETS = range(13, 29)
"""ONNX opsets that may be requested for the result."""
SPREAD = "spread"
"""A scale per channel for weights whose channels differ much, by a rule on the weight alone."""

_FROM_UP_TO: Mapping[str, tuple[float, float]] = {"finer_share": (0, 1)}
_ABOVE_UP_TO: Mapping[str, tuple[float, float]] = {"percentile": (50, 100), "averaging_constant": (0, 1)}


def has_headroom(activation: Format | None) -> bool:
    """Return whether a format of activations is integers with bits to spare."""
    return activation is not None and activation.is_integer and activation.bits >= _HEADROOM_BITS


def range_rule(activation: Format | None, weight: str) -> str:
    """Return the method for activation ranges beside weights of a format, where outputs do not decide."""
    if has_headroom(activation):
        return "Extrapolated"
    if activation is None or (activation.name, weight) != ("int8", "int8"):
        return "MinMax"
    return "MSE"  # a symmetric range spends one of 8 bits on a sign that few tensors have


def checked_value(key: str, kind: str, value: object) -> Any:
    """Return the value converted to the type ``kind``, which is the annotation of its field.

    Numbers become floats, lists tuples (also in tables), tables new dictionaries. Raises ValueError naming
    key, value and the legal values.
    """
    if key == "per_channel" and value == SPREAD:
        return value
    convert, legal = _KINDS[kind.removesuffix(" | None").partition("[")[0]]
    if value is None and kind.endswith("| None"):
        return None
    converted = convert(value)
    if converted is None:
        raise ValueError(f"{key} is {value!r}, it must be {legal}")
    if key in _LEGAL and value not in _LEGAL[key] and not isinstance(converted, tuple):
        near = did_you_mean(str(value), (choice for choice in _LEGAL[key] if isinstance(choice, str))) or ","
        raise ValueError(f"{key} is {value!r}{near} legal are {', '.join(map(repr, _LEGAL[key]))}")
    if key == "opset" and converted not in (0, *_OPSETS):
        raise ValueError(f"opset is {value}, legal are {_OPSETS[0]} to {_OPSETS[-1]}, and 0 for any")
    if key in _ABOVE_UP_TO:
        low, high = _ABOVE_UP_TO[key]
        if not low < converted <= high:
            raise ValueError(f"{key} is {value!r}, legal are numbers above {low} up to {high}")
    if key in _FROM_UP_TO:
        low, high = _FROM_UP_TO[key]
        if not low <= converted <= high:
            raise ValueError(f"{key} is {value!r}, legal are numbers from {low} to {high}")
    return converted


def check_shapes(shapes: Mapping[str, object]) -> None:
    """Raise ValueError naming the input, unless every shape is a list of sizes above 0."""
    for name, shape in shapes.items():
        if not isinstance(shape, tuple) or not all(type(size) is int and size > 0 for size in shape):
            raise ValueError(f"input_shapes entry '{name}' is {shape!r}, it must be a list of sizes above 0")


def _of(*kinds: type) -> Callable[[object], Any]:
    """Return a function that returns a value of these types and None for others; bool is not int."""

    def _convert(value: object) -> Any:
        return value if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)) else None

    return _convert


def _number(value: object) -> float | None:
    number = _of(int, float)(value)
    return None if number is None else float(number)


def _strings(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return None
    return tuple(value)


def _string_or_strings(value: object) -> tuple[str, ...] | None:
    return (value,) if isinstance(value, str) else _strings(value)


def _table(value: object) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}


_KINDS: Mapping[str, tuple[Callable[[object], Any], str]] = {
    "str": (_of(str), "a string"),
    "bool": (_of(bool), "true or false"),
    "bool | str": (lambda value: value if value == "auto" else _of(bool)(value), "true, false or 'auto'"),
    "float": (_number, "a number"),
    "int": (_of(int), "a whole number"),
    "tuple": (_strings, "a list of strings"),
    "str | tuple": (_string_or_strings, "a string or a list of strings"),
    "Mapping": (_table, "a table"),
}


@dataclass(frozen=True, kw_only=True)
class SchemeTable:
    """A parsed table of a scheme; ``written``: its keys and values as given in the scheme, in order."""

    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    @cache
    def key_names(cls) -> Sequence[str]:
        """Return the names of all keys that the table can have."""
        return tuple(key.name for key in dataclasses.fields(cls) if key.name != "written")

    @classmethod
    def parse(cls, name: str, values: object) -> Self | None:
        """Return the table with a name, or None without keys; a parsed table is returned unchanged.

        Raises ValueError unless it is a table, and for an unknown key.
        """
        if values is None or isinstance(values, cls):
            return values
        written = checked_value(name, "Mapping", values)
        for key in written:
            refuse_unknown(str(key), cls.key_names(), f"{name} key")
        return cls(**written, written=written) if written else None

    @cached_property
    def said(self) -> Mapping[str, Any]:
        """The table as it was written, or with all its values if it was not parsed."""
        if self.written and type(self)(**self.written) == self:
            return dict(self.written)
        values = {key: getattr(self, key) for key in self.key_names()}
        return {key: value for key, value in values.items() if value is not None}

    def _check_ranges(self, name: str, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Raise ValueError naming table, key and value for a number outside of the range of its key."""
        for key, (least, most) in ranges.items():
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                ends = f"from {least}" if math.isfinite(least) else "of any sign"
                ends += f" to {most}" if math.isfinite(most) else ""
                raise ValueError(f"{name} {key} is {value}, legal are numbers {ends}")

    def _check_types(self, name: str) -> None:
        """Convert values to the annotated types; ValueError naming table, key and value."""
        kinds = {key.name: str(key.type) for key in dataclasses.fields(self)}
        for key in self.key_names():
            object.__setattr__(self, key, checked_value(f"{name} {key}", kinds[key], getattr(self, key)))
