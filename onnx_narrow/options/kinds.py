"""Values that options may have: another type is a TypeError, an illegal value a ValueError.

Types that take time to import are named as ``module:class``.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from transforms.files.spelling import spelled

MOST = 2**31 - 1
"""Largest count, unless an option sets another limit."""

LARGEST = 2**63 - 1
"""Largest number of bytes, and largest seed."""

MOST_AT_ONCE = 4096
"""Largest number of threads and processes: many more than the cores of a machine can bring it down."""


REQUIRED = object()
"""The default of an option that has to be given."""


@dataclass(frozen=True)
class Kind:
    """A kind of value, in words: the types that it may have, and the values of these.

    ``annotation``: its type in signatures; ``choices``: all legal values, if they have names. ``default``:
    the value of options that are not given, REQUIRED where there is none. ``form``: what becomes of a value.
    """

    words: str
    annotation: str
    types: tuple[type | str, ...] = (object,)
    is_legal: Callable[[Any], bool] = lambda value: True
    choices: tuple[str | int, ...] = ()
    default: Any = None
    form: Callable[[Any], Any] = lambda value: value

    def by_default(self, value: object) -> Kind:
        """Return the kind of options that have this value unless another is given."""
        return replace(self, default=value)

    def check(self, name: str, value: object) -> None:
        """Raise TypeError or ValueError for a value that the option of that name may not have."""
        if not self._is_of_type(value):
            raise TypeError(f"{spelled(f'{{{name}}}')} is {value!r}, not {self.words}")
        if self.is_legal(value):
            return
        from ops.legal_names import did_you_mean  # ops needs time to import

        names = [choice for choice in self.choices if isinstance(choice, str)]
        near = did_you_mean(value, names) if isinstance(value, str) else ""
        raise ValueError(f"{spelled(f'{{{name}}}')} is {value!r}, not {self.words}{near}")

    def _is_of_type(self, value: object) -> bool:
        if isinstance(value, bool) and bool not in self.types and object not in self.types:
            return False
        return any(isinstance(value, kind if isinstance(kind, type) else _class(kind)) for kind in self.types)


def _class(place: str) -> type:
    module, _, name = place.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found


def whole(least: int = 1, most: int = MOST) -> Kind:
    """Return the kind of whole numbers from ``least`` to ``most``."""
    words = f"a whole number from {least} to {most}"
    return Kind(words, "int", (Integral,), lambda value: least <= value <= most)


def number(least: float = -math.inf, most: float = math.inf, *, above: bool = False) -> Kind:
    """Return the kind of finite numbers from ``least``, or ``above`` it, to ``most``."""
    start = "" if math.isinf(least) else f" {'above' if above else 'from'} {least:g}"
    words = "a number" + start + ("" if math.isinf(most) else f" to {most:g}")

    def _is_legal(value: float) -> bool:
        return math.isfinite(value) and least <= value <= most and not (above and value == least)

    return Kind(words, "float", (Real,), _is_legal)


def choice(*legal: str | int) -> Kind:
    """Return the kind of values from a list."""
    types = tuple({type(value) for value in legal})
    annotation = "str" if str in types else "int"
    return Kind(" or ".join(map(repr, legal)), annotation, types, lambda value: value in legal, legal)


def unchecked(annotation: str, default: object = None) -> Kind:
    """Return the kind of values that are checked where they are used."""
    return Kind("", annotation, default=default)


@runtime_checkable
class _Array(Protocol):
    def __array__(self) -> Any:
        """Return the array."""


def listed(texts: Sequence[str] | str) -> tuple[str, ...]:
    """Return strings as a tuple; a single string becomes a tuple of one."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _path_or_array(value: Any) -> Any:
    return Path(value) if isinstance(value, str | os.PathLike) else value


def _shapes(value: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in value.items()}


def _has_texts(value: Sequence[object]) -> bool:
    return all(isinstance(text, str) for text in value)


def _has_numbers(value: object, kind: type) -> bool:
    """Whether a value is a number, or a sequence of numbers, which a string is not."""
    return not isinstance(value, Sequence) or (
        all(isinstance(each, kind) for each in value) and len(value) > 0
    )


FLAG = Kind("True or False", "bool", (bool,), default=False)
ON = FLAG.by_default(True)
PATH = Kind("a path", "AnyPath", (str, os.PathLike), form=Path)
TEXT = Kind("a string", "str", (str,))
TEXTS = Kind("a list of strings", "Sequence[str] | str", (Sequence,), _has_texts, default=(), form=listed)
TABLE = partial(Kind, "a mapping", types=(Mapping,))
SHAPES = TABLE("Mapping[str, Sequence[int]]", form=_shapes)
SIZE = Kind(
    "a number, or height and width",
    "int | Sequence[int]",
    (int, Sequence),
    partial(_has_numbers, kind=Integral),
)
NUMBERS = Kind(
    "a number, or one for each channel",
    "float | Sequence[float]",
    (Real, Sequence),
    partial(_has_numbers, kind=Real),
)
DATA = unchecked("Data")
MODEL = Kind(
    "a path, a ModelProto, a Graph or a Result",
    "Model",
    (str, os.PathLike, "onnx:ModelProto", "onnx_graphsurgeon:Graph", "onnx_narrow.api.result:Result"),
)
CONFIG = Kind(
    "a preset, a path, a Scheme or a mapping of its keys",
    "Config",
    (str, os.PathLike, Mapping, "transforms.scheme:Scheme"),
)
_CODE: tuple[Any, ...] = (str, Callable)
METRIC = Kind("the name of a metric, FILE.py:FUNCTION or a function", "UserMetric | str", _CODE)
LABELS = Kind(
    "a path or an array",
    "AnyPath | ArrayLike",
    (str, os.PathLike, Sequence, _Array),
    form=_path_or_array,
)
PREPROCESS = Kind("imagenet, mobilenet, zero-one, FILE.py:FUNCTION or a function", "Preprocess", _CODE)
