"""Ranges of samples at the inputs of a model, compared with the grids of the quantized model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import Feed
from transforms.precision.readings import Reading

_APART = 4.0
"""Ratio of the ranges of samples and grid, either way, from which on preprocessing must differ."""


@dataclass(frozen=True)
class InputRange:
    """Lowest and highest value of the samples and of the input's grid; NaN without a grid."""

    name: str
    low: float
    high: float
    grid_low: float
    grid_high: float

    @property
    def is_suspect(self) -> bool:
        """Whether the samples look preprocessed differently from those of calibration."""
        if np.isnan(self.grid_low):
            return False
        here, calibrated = (
            max(abs(a), abs(b)) for a, b in ((self.low, self.high), (self.grid_low, self.grid_high))
        )
        return bool(here > _APART * calibrated or _APART * here < calibrated)


def input_ranges(layers: Iterable[Iterable[Reading]], feeds: Sequence[Feed]) -> list[InputRange]:
    """Return the ranges of float inputs; ``layers``: what each layer reads on a grid."""
    grids = {
        reading.source: reading.grid
        for layer_readings in layers
        for reading in layer_readings
        if reading.source and reading.grid is not None
    }
    ranges = []
    for name, array in feeds[0].items():
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            continue
        numbers = [feed[name][np.isfinite(feed[name])] for feed in feeds]
        finite = [values for values in numbers if values.size]
        if not finite:
            continue
        low, high = (
            min(float(values.min()) for values in finite),
            max(float(values.max()) for values in finite),
        )
        grid = grids.get(name)
        ends = (np.nan, np.nan) if grid is None else (grid.low, grid.high)
        ranges.append(InputRange(name, low, high, *ends))
    return ranges
