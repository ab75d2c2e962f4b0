"""Values that keywords may have: another type is a TypeError, an illegal value a ValueError."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ops.legal_names import did_you_mean
from transforms.files.spelling import spelled

MOST = 2**31 - 1
"""Largest count, unless a keyword sets another limit."""

MOST_AT_ONCE = 4096
"""Largest number of threads and processes: many more than the cores of a machine can bring it down."""


@dataclass(frozen=True)
class Kind:
    """A kind of value, in words: the types that it may have, and the values of these."""

    words: str
    types: tuple[type, ...]
    is_legal: Callable[[Any], bool] = lambda value: True
    names: tuple[str, ...] = ()

    def check(self, name: str, value: object) -> None:
        """Raise TypeError or ValueError for a value that the keyword of that name may not have."""
        if (isinstance(value, bool) and bool not in self.types) or not isinstance(value, self.types):
            raise TypeError(f"{spelled(f'{{{name}}}')} is {value!r}, not {self.words}")
        if not self.is_legal(value):
            near = did_you_mean(value, self.names) if isinstance(value, str) else ""
            raise ValueError(f"{spelled(f'{{{name}}}')} is {value!r}, not {self.words}{near}")


def whole(least: int = 1, most: int = MOST) -> Kind:
    """Return the kind of whole numbers from ``least`` to ``most``."""
    words = f"a whole number from {least} to {most}"
    return Kind(words, (Integral,), lambda value: least <= value <= most)


def number(least: float = -math.inf, most: float = math.inf, *, above: bool = False) -> Kind:
    """Return the kind of finite numbers from ``least``, or ``above`` it, to ``most``."""
    start = "" if math.isinf(least) else f" {'above' if above else 'from'} {least:g}"
    words = "a number" + start + ("" if math.isinf(most) else f" to {most:g}")

    def _is_legal(value: float) -> bool:
        return math.isfinite(value) and least <= value <= most and not (above and value == least)

    return Kind(words, (Real,), _is_legal)


def choice(*legal: str | int) -> Kind:
    """Return the kind of some values."""
    words, types = " or ".join(map(repr, legal)), tuple({type(value) for value in legal})
    names = tuple(value for value in legal if isinstance(value, str))
    return Kind(words, types, lambda value: value in legal, names)


FLAG = Kind("True or False", (bool,))
PATH = Kind("a path", (str, os.PathLike))
TEXT = Kind("a string", (str,))
TEXTS = Kind("a list of strings", (Sequence,), lambda value: all(isinstance(text, str) for text in value))
TABLE = Kind("a mapping", (Mapping,))
SIZE = Kind("a number, or height and width", (int, Sequence), lambda value: _has_numbers(value, Integral))
NUMBERS = Kind("a number, or one for each channel", (Real, Sequence), lambda value: _has_numbers(value, Real))


def _has_numbers(value: object, kind: type) -> bool:
    """Whether a value is a number, or a sequence of numbers, which a string is not."""
    return not isinstance(value, Sequence) or (all(isinstance(one, kind) for one in value) and len(value) > 0)


def check_kinds(given: Mapping[str, object], kinds: Mapping[str, Kind]) -> None:
    """Raise TypeError or ValueError for the first keyword whose value is of another kind than it takes."""
    for name, value in given.items():
        if name in kinds:
            kinds[name].check(name, value)
