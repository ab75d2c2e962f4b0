"""Numbers on the command line: what is not one, or not within its range, is refused in one line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

MOST = 2**31 - 1
"""Of things that are counted, unless more is said."""

LARGEST = 2**63 - 1
"""Of bytes, and of what is no number of things."""

MOST_AT_ONCE = 4096
"""Threads, and processes: a machine is brought down by far more of them than it has cores."""


def whole(least: int = 1, most: int = MOST) -> Callable[[str], int]:
    """Return what reads a whole number from ``least`` to ``most``."""

    def _read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is no whole number from {least} to {most}")
        return value

    return _read


def number(
    least: float = -math.inf, most: float = math.inf, *, above: bool = False
) -> Callable[[str], float]:
    """Return what reads a finite number from ``least``, or ``above`` it, to ``most``."""
    start = "" if math.isinf(least) else f" {'above' if above else 'from'} {least:g}"
    legal = "number" + start + ("" if math.isinf(most) else f" to {most:g}")

    def _read(text: str) -> float:
        value = _float(text)
        if not (math.isfinite(value) and least <= value <= most) or (above and value == least):
            raise argparse.ArgumentTypeError(f"{_shown(text)} is no {legal}")
        return value

    return _read


def numbers(read: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    """Return what reads numbers with commas between them, each by ``read``."""
    return lambda text: tuple(map(read, text.split(",")))


def size(text: str) -> tuple[int, int]:
    """Return height and width of ``HxW``, or of one number for both."""
    height, times, width = text.lower().partition("x")
    read = whole()
    try:
        return read(height), read(width if times else height)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no size of images: {error}") from error


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def bytes_of(text: str) -> int:
    """Return a number of bytes, written with a unit: ``500M``, ``4GiB``."""
    shortened = text.lower().removesuffix("b").removesuffix("i")
    unit = shortened[-1:] if shortened[-1:] in _UNITS else ""
    value = _float(shortened.removesuffix(unit)) * _UNITS[unit]
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no size")
    return int(value)


def _shown(text: str) -> str:
    return text or "''"


def _float(text: str) -> float:
    """Return the number, NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan
