"""Numbers and names as summaries and charts show them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

_LONGEST_NAME = 48


def shortened(name: str) -> str:
    """Return the end of a name that is too long for a line."""
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"


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
