"""Experts in two parts, so that the inner numbers that count most can have more bits than the others.

The second product sums over what the first one makes, number by number: two mixtures of some of these each,
with the same router, have the sum of the whole. Each expert has its own ones in the finer part. An inner
number is worth the rounding of its rows of the first product times that of its column of the second: both
grow with their norms, whose product ranks it.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from transforms.experts.mixture import GATED, Mixture, Stack

_MOST = 4
"""One of so many inner numbers is finer at the most."""


def split(mixture: Mixture, share: float, step: int) -> tuple[Mixture, Mixture] | None:
    """Return a mixture without some inner numbers, and one of these; None where there are none.

    ``share`` of the inner numbers, rounded up to whole steps of ``step``, but at most a quarter. The bias of
    the second product is in the first part.
    """
    size = mixture.second.shape[2]
    count = min(ceil(share * size / step), size // (_MOST * step)) * step
    if not count:
        return None
    orders = np.stack([_order(mixture, expert) for expert in range(mixture.second.shape[0])])
    coarse, finer = (_part(mixture, np.sort(part, 1)) for part in (orders[:, count:], orders[:, :count]))
    return coarse, replace(finer, second=replace(finer.second, bias=None))


def _order(mixture: Mixture, expert: int) -> NDArray[np.intp]:
    """Return the inner numbers of an expert, those that count most first."""
    columns = np.asarray(mixture.second.of_expert(expert), np.float32)
    rows = np.asarray(mixture.first.of_expert(expert), np.float32)
    worth = np.linalg.norm(columns, axis=0)
    worth = worth * np.linalg.norm(rows, axis=1).reshape(len(worth), -1).prod(1)
    return np.argsort(-worth, kind="stable")


def _part(mixture: Mixture, chosen: NDArray[np.intp]) -> Mixture:
    """Return the mixture of the inner numbers [experts, count] that are chosen for each expert."""
    first, second, count = mixture.first, mixture.second, chosen.shape[1]
    turns = 2 if mixture.activation == GATED else 1
    rows = (chosen[..., None] * turns + np.arange(turns)).reshape(len(chosen), -1)
    bias = None if first.bias is None else np.take_along_axis(first.bias, rows, 1)

    def _of_first(expert: int) -> NDArray[np.generic]:
        return first.of_expert(expert)[rows[expert]]

    def _of_second(expert: int) -> NDArray[np.generic]:
        return second.of_expert(expert)[:, chosen[expert]]

    sizes = (first.shape[0], count * turns, first.shape[2]), (*second.shape[:2], count)
    return replace(
        mixture,
        first=Stack(first.name, sizes[0], _of_first, bias),
        second=Stack(second.name, sizes[1], _of_second, second.bias),
    )
