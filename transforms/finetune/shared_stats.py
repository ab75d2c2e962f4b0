"""What is known of the rows of a layer, or of several that share one weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.finetune.gram import GramStats
from transforms.finetune.row_stats import RowStats

LayerStats = GramStats | RowStats
"""Sums over the rows of a layer, or its rows while they are fewer than its inputs."""


def total(stats: Iterable[LayerStats]) -> LayerStats:
    """Return the sums over the rows of all; there must be at least one."""
    parts = [*stats]
    rows = [part for part in parts if isinstance(part, RowStats)]
    if len(rows) == len(parts):
        return reduce(RowStats.joined, rows).settled()
    return reduce(add, [part.summed() if isinstance(part, RowStats) else part for part in parts])


@dataclass(frozen=True)
class SharedGramStats:
    """Sums of each user of a weight, and whether it has a bias that may change.

    Biases of U users are [U * G, N], one user after another.
    """

    parts: tuple[LayerStats, ...]
    has_bias: tuple[bool, ...]

    def freed(self) -> SharedGramStats:
        """Return the same sums with a bias for every layer."""
        return SharedGramStats(self.parts, (True,) * len(self.parts))

    @property
    def count(self) -> float:
        """The number of rows."""
        return sum(part.count for part in self.parts)

    def free(self) -> LayerStats:
        """Return the sums that determine the best weights: around the means if there is a bias."""
        pairs = zip(self.parts, self.has_bias, strict=True)
        return total(part.centred() if has_bias else part for part, has_bias in pairs)

    def bias(self, weights: NDArray[np.floating]) -> Float64Array:
        """Return the biases [U * G, N] with the least error for weights [G, N, K]; 0 if there is none."""
        pairs = zip(self.parts, self.has_bias, strict=True)
        return np.concatenate([part.bias(weights) * has_bias for part, has_bias in pairs])

    def error(self, weights: NDArray[np.floating], bias: NDArray[np.floating]) -> Float64Array:
        """Return the squared error [G, N] of weights [G, N, K] and biases [U * G, N]."""
        biases = np.split(np.asarray(bias), len(self.parts))
        errors = [part.error(weights, own) for part, own in zip(self.parts, biases, strict=True)]
        return np.asarray(sum(errors[1:], errors[0]))

    def power(self) -> float:
        """Return the sum of squares of the outputs around their means."""
        return sum(float(part.centred().yy.sum()) for part in self.parts)
