"""Names of options in messages, spelled for the interface (door) that the caller uses.

The library says ``spelled("{min_sqnr} requires {data}")``; callers in Python read ``min_sqnr requires
data``, the command line says ``--min-sqnr requires --data``. ``{config:A8W8}`` is an option with a value:
``config='A8W8'``, or ``--config A8W8``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class UsageError(ValueError):
    """Incompatible options, or missing ones without which there is nothing to do."""


_PLACEHOLDERS = {"DIR", "FORMAT", "INPUT=OUTPUT", "N", "OUT=IN"}
"""Placeholders for values, as the command line shows them."""


_MAPPINGS = {"feeds": "=", "input_shapes": ":", "states": "="}
"""Options that are mappings in Python, and the separator of key and value on the command line."""


class Door(Protocol):
    """Spells options."""

    def __call__(self, name: str, value: str = "") -> str:
        """Return an option by its keyword, with a value if there is one."""


def as_keyword(name: str, value: str = "") -> str:
    """Return an option as a keyword of a Python call: ``min_sqnr``, ``min_sqnr=30``, ``config='A8W8'``."""
    if not value or value in _PLACEHOLDERS:
        return name
    if name in _MAPPINGS:
        key, _, item = value.rpartition(_MAPPINGS[name])
        return f"{name}={{{key!r}: {item!r}}}"
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        value = repr(value)
    return f"{name}={value}"


_door: ContextVar[Door] = ContextVar("door", default=as_keyword)


@contextmanager
def spelling(door: Door) -> Iterator[None]:
    """Spell options for a door during the block."""
    token = _door.set(door)
    try:
        yield
    finally:
        _door.reset(token)


def is_python() -> bool:
    """Return whether the caller uses Python."""
    return _door.get() is as_keyword


def as_option(name: str, value: str = "") -> str:
    """Return one option as spelled for the caller; the value may be any text."""
    return _door.get()(name, value)


def spelled(template: str) -> str:
    """Return a message whose options in braces are spelled for the caller."""
    return template.format_map(_Options())


class _Options(dict[str, "_Option"]):
    def __missing__(self, name: str) -> _Option:
        return _Option(name)


class _Option:
    def __init__(self, name: str) -> None:
        self._name = name

    def __format__(self, value: str) -> str:
        return _door.get()(self._name, value)
