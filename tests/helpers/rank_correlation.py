"""How two tables of sensitivities rank the same layers and formats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from transforms.precision.sensitivity import Sensitivity


def spearman(a: Sensitivity, b: Sensitivity) -> float:
    """Return the correlation, -1 to 1, of how two tables rank by harm what is in both.

    Like harms share the mean of their ranks. NaN where there is nothing to rank: less than two layers and
    formats in common, or all of one table alike.
    """
    harms = [{(damage.layer, damage.label): damage.harm for damage in one.damages} for one in (a, b)]
    common = [key for key in harms[0] if key in harms[1]]
    ranks = [_ranks([table[key] for key in common]) for table in harms]
    middle = (len(common) - 1) / 2
    x, y = ([rank - middle for rank in one] for one in ranks)
    norm = math.sqrt(_product(x, x) * _product(y, y))
    return _product(x, y) / norm if norm else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value from 0, the mean place where several are alike."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, start = [0.0] * len(values), 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for i in order[start:end]:
                ranks[i] = (start + end - 1) / 2
            start = end
    return ranks


def _product(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))
