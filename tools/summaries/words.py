"""Numbers and names as summaries and charts show them."""

from __future__ import annotations

import math
from pathlib import Path

from tools.cli.output_file import total_bytes

_LONGEST_NAME = 48


def shortened(name: str) -> str:
    """Return the end of a name that is too long for a line."""
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"


def figure(value: float | None, digits: int = 4) -> str:
    """Return a number with that many significant digits, ``-`` for none and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def written(before: list[Path], after: list[Path]) -> str:
    """Return the sizes of a model's files before and after, and where the first of the latter lies."""
    old, new = total_bytes(before), total_bytes(after)
    return f"Size: {old:,} -> {new:,} bytes ({new / old:.2f}x), written to '{after[0]}'"
