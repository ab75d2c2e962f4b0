"""How far the numbers of a tensor reach in each of the samples: where those of others may end follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_EULER = 0.5772156649
_ALIKE = float(np.finfo(np.float32).eps)  # of the mean
_DEVIATION = math.pi / math.sqrt(6)  # of Gumbel's distribution, in its scales

LOW, HIGH, MAGNITUDE = range(3)
"""The reach of a sample below zero, above zero, and the larger of both."""


@dataclass
class SampleEnds:
    """Sums over ``count`` samples of how far their numbers reach: ``total`` [3] and ``squares`` [3]."""

    count: int = 0
    total: list[float] = field(default_factory=lambda: [0.0] * 3)
    squares: list[float] = field(default_factory=lambda: [0.0] * 3)

    def add(self, low: float, high: float) -> None:
        """Add the lowest and the highest number of a sample."""
        below, above = max(-low, 0.0), max(high, 0.0)
        self.count += 1
        for end, reach in enumerate((below, above, max(below, above))):
            self.total[end] += reach
            self.squares[end] += reach * reach

    def beyond(self, end: int) -> tuple[float, float] | None:
        """Return location and scale of Gumbel's distribution of the reach of a sample; None if all are alike.

        Largest numbers of samples are distributed so, whatever their numbers are, unless their tails are
        heavy or end (Fisher and Tippett 1928; Gumbel, Statistics of Extremes, 1958, section 5.2). Location
        and scale are those of the mean and the deviation.
        """
        if self.count < 2:
            return None
        mean = self.total[end] / self.count
        variance = (self.squares[end] - mean * self.total[end]) / (self.count - 1)
        if variance <= (_ALIKE * mean) ** 2:
            return None
        scale = math.sqrt(variance) / _DEVIATION
        return mean - _EULER * scale, scale

    def encode(self) -> list[Any]:
        """Return what ``json`` can write."""
        return [self.count, self.total, self.squares]

    @classmethod
    def decode(cls, stored: Iterable[Any]) -> SampleEnds:
        """Return what ``encode`` made a list of; ValueError or TypeError for another one."""
        count, total, squares = stored
        found = cls(int(count), [float(one) for one in total], [float(one) for one in squares])
        sums = [*found.total, *found.squares]
        if len(found.total) != 3 or len(found.squares) != 3 or found.count < 0:
            raise ValueError(f"{stored} are no sums of the ends of samples")
        if not all(0 <= one < math.inf for one in sums):
            raise ValueError(f"{stored} holds what is no sum of magnitudes")
        return found
