"""Options in messages: named once, and spelled as the door spells them through which a caller came.

The library says ``spelled("{min_sqnr} requires {data}")``; to callers in Python that reads
``min_sqnr requires data``, on the command line ``--min-sqnr requires --data``. ``{config:A8W8}`` is an
option with a value: ``config='A8W8'``, or ``--config A8W8``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class UsageError(ValueError):
    """Options that do not go together, or without which there is nothing to do."""


_PLACEHOLDERS = {"DIR", "FORMAT", "INPUT=OUTPUT", "N", "OUT=IN"}
"""Values that stand for others, as the command line shows them."""


_MAPPINGS = {"feeds": "=", "input_shapes": ":", "states": "="}
"""Options that are mappings in Python, and the sign between key and value on the command line."""


class Door(Protocol):
    """Spells options."""

    def __call__(self, name: str, value: str = "") -> str:
        """Return an option by the name of its keyword, with a value if there is one."""


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
    """Let a door spell options meanwhile."""
    token = _door.set(door)
    try:
        yield
    finally:
        _door.reset(token)


def is_python() -> bool:
    """Return whether the caller came through Python."""
    return _door.get() is as_keyword


def as_option(name: str, value: str = "") -> str:
    """Return one option as the caller's door spells it; the value may be any text."""
    return _door.get()(name, value)


def spelled(template: str) -> str:
    """Return a message in which options in braces are spelled as the caller's door does."""
    return template.format_map(_Options())


class _Options(dict[str, "_Option"]):
    def __missing__(self, name: str) -> _Option:
        return _Option(name)


class _Option:
    def __init__(self, name: str) -> None:
        self._name = name

    def __format__(self, value: str) -> str:
        return _door.get()(self._name, value)
