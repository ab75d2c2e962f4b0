"""Reading values on the command line: an illegal one is refused in one line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onnx_narrow.options.kinds import Kind, number, whole
from onnx_narrow.options.option import Option

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3}


def reader(option: Option) -> Callable[[str], Any] | None:
    """Return the function that reads the value of an option, None where it is the text."""
    kind = option.kind
    if option.read:
        return _READERS[option.read]
    if kind.annotation == "int" and kind.choices:
        return reading(whole(*sorted(map(int, kind.choices))))
    if kind.annotation in ("int", "float"):
        return reading(kind)
    return Path if kind.annotation == "AnyPath" else None


def reading(kind: Kind) -> Callable[[str], Any]:
    """Return a function that reads a number of a kind."""
    convert: type = int if kind.annotation == "int" else float

    def _read(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            value = math.nan
        if not kind.is_legal(value):
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not {kind.words}")
        return value

    return _read


def numbers(kind: Kind) -> Callable[[str], tuple[float, ...]]:
    """Return a function that reads numbers separated by commas, each of a kind."""
    return lambda text: tuple(map(reading(kind), text.split(",")))


def size(text: str) -> tuple[int, int]:
    """Return height and width of ``HxW``, or of one number for both."""
    height, times, width = text.lower().partition("x")
    read = reading(whole())
    try:
        return read(height), read(width if times else height)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not an image size: {error}") from error


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name of an input and its shape, of ``NAME:1,3,224,224``."""
    name, colon, sizes = text.rpartition(":")
    if not (name and colon):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not an input with its sizes, NAME:1,3,224,224")
    return name, tuple(map(reading(whole()), sizes.split(",")))


def pair(words: str) -> Callable[[str], tuple[str, str]]:
    """Return a function that reads two names with ``=`` between them; ``words``: their description."""

    def _read(text: str) -> tuple[str, str]:
        first, sign, second = text.partition("=")
        if not (first and sign and second):
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not {words}")
        return first, second

    return _read


def bytes_of(text: str) -> int:
    """Return a number of bytes, written with a unit: ``500M``, ``4GiB``."""
    return _with_unit(text, 1 << 10)


def file_size(text: str) -> int:
    """Return a number of bytes, where MB is a million bytes and MiB 2^20: ``190MB``, ``1.5GiB``."""
    return _with_unit(text, 1 << 10 if text.lower().removesuffix("b").endswith("i") else 1000)


def _with_unit(text: str, step: int) -> int:
    digits = text.lower().removesuffix("b").removesuffix("i")
    unit = digits[-1:] if digits[-1:] in _UNITS else ""
    try:
        value = float(digits.removesuffix(unit)) * step ** _UNITS[unit]
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a size")
    return int(value)


def _shown(text: str) -> str:
    return text or "''"


_READERS: Mapping[str, Callable[[str], Any]] = {
    "bytes": bytes_of,
    "feed": pair("an output and the input for it, OUT=IN"),
    "file_size": file_size,
    "means": numbers(number()),
    "path": Path,
    "scales": numbers(number(0, above=True)),
    "shape": input_shape,
    "size": size,
    "state": pair("an input and its output, IN=OUT"),
    "upper": str.upper,
}
"""Readers of options whose kind does not determine how their values are written."""
