"""Values on the command line: anything else, or a number out of range, is refused in one line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

MOST = 2**31 - 1
"""Largest count, unless an option sets another limit."""

LARGEST = 2**63 - 1
"""Largest number of bytes, and largest seed."""

MOST_AT_ONCE = 4096
"""Largest number of threads and processes: many more than the cores of a machine can bring it down."""


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``least`` to ``most``."""

    def _read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number from {least} to {most}")
        return value

    return _read


def number(
    least: float = -math.inf, most: float = math.inf, *, above: bool = False
) -> Callable[[str], float]:
    """Return a parser of finite numbers from ``least``, or ``above`` it, to ``most``."""
    start = "" if math.isinf(least) else f" {'above' if above else 'from'} {least:g}"
    legal = "number" + start + ("" if math.isinf(most) else f" to {most:g}")

    def _read(text: str) -> float:
        value = _float(text)
        if not (math.isfinite(value) and least <= value <= most) or (above and value == least):
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a {legal}")
        return value

    return _read


def numbers(read: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    """Return a parser of numbers separated by commas, each parsed by ``read``."""
    return lambda text: tuple(map(read, text.split(",")))


def size(text: str) -> tuple[int, int]:
    """Return height and width of ``HxW``, or of one number for both."""
    height, times, width = text.lower().partition("x")
    read = whole()
    try:
        return read(height), read(width if times else height)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not an image size: {error}") from error


def input_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name of an input and its shape, of ``NAME:1,3,224,224``."""
    name, colon, sizes = text.rpartition(":")
    if not (name and colon):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not an input with its sizes, NAME:1,3,224,224")
    return name, tuple(map(whole(), sizes.split(",")))


def pair(words: str) -> Callable[[str], tuple[str, str]]:
    """Return a parser of two names with ``=`` between them; ``words``: what they are."""

    def _read(text: str) -> tuple[str, str]:
        first, sign, second = text.partition("=")
        if not (first and sign and second):
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not {words}")
        return first, second

    return _read


_UNITS = {"": 0, "k": 1, "m": 2, "g": 3}


def bytes_of(text: str) -> int:
    """Return a number of bytes, written with a unit: ``500M``, ``4GiB``."""
    return _with_unit(text, 1 << 10)


def file_size(text: str) -> int:
    """Return a number of bytes, where MB is a million of them and MiB 2^20: ``190MB``, ``1.5GiB``."""
    return _with_unit(text, 1 << 10 if text.lower().removesuffix("b").endswith("i") else 1000)


def _with_unit(text: str, step: int) -> int:
    shortened = text.lower().removesuffix("b").removesuffix("i")
    unit = shortened[-1:] if shortened[-1:] in _UNITS else ""
    value = _float(shortened.removesuffix(unit)) * step ** _UNITS[unit]
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a size")
    return int(value)


def _shown(text: str) -> str:
    return text or "''"


def _float(text: str) -> float:
    """Return the number, NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan
