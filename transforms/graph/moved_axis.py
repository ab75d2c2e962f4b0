"""Operators that take a number of each channel from a tensor, or the mean of such rows."""

from __future__ import annotations

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})
_ALONG = frozenset({"Slice", "Gather", "Split", "Concat", "ReduceMean"})  # other axes than that of channels
MOVES = _VIEWS | _ALONG | {"Transpose", "Expand"}
