"""Rows of several samples, put together before sums are made of them.

A product of few rows takes longer than its operations, most of all where there are many small groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.finetune.row_weights import Floats

Array = NDArray[Any]

LIMIT = 1 << 17  # numbers that are put together: in float64 1 MiB, which a cache of the processor holds


class RowBlock:
    """Inputs [G, R, K] and outputs [G, R, N] of rows that wait, and how much each row counts."""

    def __init__(self, add: Callable[[Array, Array, Floats | None], None]) -> None:
        """Take what is called with rows of several samples: their inputs, outputs and weights [R], if any."""
        self._add, self._rows = add, 0
        self._waiting: list[tuple[Array, Array, Floats | None]] = []

    def add(self, inputs: Array, outputs: Array, weights: Floats | None) -> None:
        """Take rows of a sample; either all samples have weights or none."""
        self._waiting.append((inputs, outputs, weights))
        self._rows += inputs.shape[1]
        if self._rows >= _enough(inputs, outputs):
            self.flush()

    def flush(self) -> None:
        """Pass on what waits, if anything does."""
        if self._waiting:
            inputs, outputs, weights = zip(*self._waiting, strict=True)
            counts = None if weights[0] is None else np.concatenate(weights)
            self._waiting, self._rows = [], 0
            self._add(np.concatenate(inputs, 1), np.concatenate(outputs, 1), counts)


def _enough(inputs: Array, outputs: Array) -> int:
    """Return how many rows fill the limit; at least K, for sums of [K, K] numbers are read and written."""
    groups, _, summed = inputs.shape
    return max(summed, LIMIT // max(1, groups * (summed + outputs.shape[2])))
