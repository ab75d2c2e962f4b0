"""Numbers and names as summaries and charts show them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transforms.graph.some_names import counted

_LONGEST_NAME = 48


_MOST_LINES, _FIRST = 11, 3
"""The most lines that are shown, apart from the one that counts details; the first three are folded last."""

_WANTED = (
    *("Moved ", "Tuned: ", "Target of ", "Kept: ", "Outputs"),
    *("Size: ", "Time here: ", "Slower", "Runs on ", "For "),
)
"""Beginnings of lines that are never folded."""


class Detail(str):
    """A line that is hidden unless details are asked for."""

    __slots__ = ()


def summed_up(lines: Iterable[str], told: Sequence[str] = ()) -> Iterator[str]:
    """Yield lines, some turned into details, so that at most 11 are shown with those ``told`` before.

    Lines between the first and the last ones become details, except those that are never folded.
    """
    summary = list(lines)
    shown = [place for place, line in enumerate(summary) if not isinstance(line, Detail)]
    surplus = len(shown) + sum(not isinstance(line, Detail) for line in told) - _MOST_LINES
    foldable = [place for place in shown if not summary[place].startswith(_WANTED)]
    start = max(0, min(_FIRST, len(foldable) - surplus))
    folded = set(foldable[start : start + max(surplus, 0)])
    yield from (Detail(line) if place in folded else line for place, line in enumerate(summary))


def aligned(rows: Sequence[Sequence[str]], widest: int | None = None) -> Iterator[str]:
    """Yield rows with their cells in columns; a cell above ``widest`` moves the rest of its line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = (cell.ljust(min(width, widest or width)) for cell, width in zip(cells, widths, strict=True))
        yield "  ".join(padded).rstrip()


def shortened(name: str) -> str:
    """Return the end of a name that is too long for a line."""
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"


def counts(things: Counter[str], what: str = "") -> str:
    """Return how many things there are, and of each name, most first: ``3 nodes: Conv 2, Relu 1``."""
    total = counted(things.total(), what) if what else str(things.total())
    return f"{total}: {', '.join(f'{name} {count}' for name, count in things.most_common())}"


def fixed_line(count: int) -> str:
    """Return how many free dimensions of inputs were fixed."""
    return f"Fixed: {counted(count, 'free dimension')} of inputs"


def figure(value: float | None, digits: int = 4) -> str:
    """Return a number with that many significant digits, ``-`` for none and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}g}"


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model before and after, and the file that the result was written to, if it was."""

    before: int
    after: int
    path: Path | None = None

    @property
    def ratio(self) -> float:
        """Part of the bytes that is left."""
        return self.after / self.before if self.before else math.inf


def written(sizes: Sizes) -> str:
    """Return the line on the sizes of a model, and where it lies."""
    place = "" if sizes.path is None else f", written to '{sizes.path}'"
    return f"Size: {sizes.before:,} -> {sizes.after:,} bytes ({sizes.ratio:.2f}x){place}"
