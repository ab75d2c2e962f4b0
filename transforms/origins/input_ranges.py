"""Ranges of the samples at the inputs of a model, beside those that the quantized model was made for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import Feed
from transforms.precision.readings import Reading

_APART = 4.0
"""Times the range of the samples, or a part of it, from which on the two are of other numbers."""


@dataclass(frozen=True)
class InputRange:
    """Lowest and highest number of the samples, and of the grid of the input; NaN without a grid."""

    name: str
    low: float
    high: float
    grid_low: float
    grid_high: float

    @property
    def is_suspect(self) -> bool:
        """Whether the samples look preprocessed in another way than those that the grid was made of."""
        if np.isnan(self.grid_low):
            return False
        here, made = (
            max(abs(a), abs(b)) for a, b in ((self.low, self.high), (self.grid_low, self.grid_high))
        )
        return bool(here > _APART * made or _APART * here < made)


def input_ranges(layers: Iterable[Iterable[Reading]], feeds: Sequence[Feed]) -> list[InputRange]:
    """Return the ranges of the inputs of floats; ``layers``: what each layer reads on a grid."""
    grids = {one.source: one.grid for found in layers for one in found if one.source and one.grid is not None}
    found = []
    for name, array in feeds[0].items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            continue
        numbers = [feed[name][np.isfinite(feed[name])] for feed in feeds]
        known = [one for one in numbers if one.size]
        if not known:
            continue
        low, high = min(float(one.min()) for one in known), max(float(one.max()) for one in known)
        grid = grids.get(name)
        ends = (np.nan, np.nan) if grid is None else (grid.low, grid.high)
        found.append(InputRange(name, low, high, *ends))
    return found
