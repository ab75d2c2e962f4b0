"""Operators that select numbers of each channel, or average them."""

from __future__ import annotations

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})
_ALONG = frozenset({"Slice", "Gather", "Split", "Concat", "ReduceMean"})  # along axes other than the channels
MOVES = _VIEWS | _ALONG | {"Transpose", "Expand"}
