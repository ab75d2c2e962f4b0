"""Which tensors stay float because eight bits of them cost the outputs too much.

A ratio whose divisor comes near zero, a difference of large numbers: one tensor may hold nearly all of the
error of a model, and no range of it helps. A model in which each tensor can be left in float shows which
(:mod:`transforms.search.largest_shares`), on samples that gave no ranges. Tensors that a dot product reads
are left in float only where the outputs are of no use otherwise, since that product loses its integers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import Float64Array
from transforms.choose_ranges.bench import Bench
from transforms.choose_ranges.measure_outputs import Score, drags, falls, gain
from transforms.choose_ranges.setting import Setting
from transforms.graph.some_names import some_names
from transforms.search.largest_shares import Removed, largest_shares

log = logging.getLogger(__name__)

FINE = 40.0
"""dB of outputs from which on no tensor is looked for."""

SEARCHED_ON = 8
"""Samples at most that the search runs; all of them decide."""

_FEWEST_RUNS = 2 * SEARCHED_ON
"""Runs without which nothing can be found: of the model as it is, and of one with all tensors in float."""

LAST_RUNS = 24 * SEARCHED_ON
"""Runs that a model may take whose outputs are of no use otherwise."""

_PRICE = 3.0
"""dB that each tensor in float has to bring: it halves the error."""

_NEEDED = 1.0
"""dB that are lost without it beside the others."""

USELESS = 10.0
"""dB below which outputs are of no use: operands of dot products are looked at, too."""


@dataclass(frozen=True)
class FloatTensors:
    """The names of tensors that stay float, and dB of the outputs without and with that, and ``where``."""

    names: Sequence[str]
    before: float
    after: float
    where: str = "held-out samples"

    def __str__(self) -> str:
        return (
            f"Kept in float for the outputs: {some_names(self.names)} "
            f"({self.before:.1f} -> {self.after:.1f} dB on {self.where})"
        )


def runs_to_search(decibels: float, spare: int) -> int:
    """Return how many runs a search may take for outputs of so many dB, 0 if it is not worth them."""
    runs = max(spare, LAST_RUNS) if decibels < USELESS else spare
    return runs if decibels < FINE and runs >= _FEWEST_RUNS else 0


def float_tensors(bench: Bench, setting: Setting, runs: int) -> FloatTensors | None:
    """Return the tensors that stay float with a setting, None if none do.

    ``bench`` has switches. ``runs``: how many runs the search may take.
    """

    def _score(kept: Collection[str]) -> Score:
        return bench.score_without(setting, kept, SEARCHED_ON)

    search, (plain, groups) = TensorSearch(_score, runs), _groups(bench)
    kept = search.extended([], plain)
    if search.score(kept).mean < USELESS:
        kept = search.extended(kept, groups)
    kept = search.needed(kept)
    if not kept:
        return None
    few = bench.sample_count <= SEARCHED_ON  # the search has run them all
    before, after = (search.score(one) if few else bench.score_without(setting, one) for one in ((), kept))
    shown, brings = gain(after, before), after.mean - before.mean
    log.info("%d in float: %.2f dB, %+.2f +- %.2f", len(kept), after.mean, shown.decibels, shown.error)
    if brings < _PRICE * len(kept) or shown.is_loss or drags(after, before) or falls(after, before):
        return None
    ranges, constants = bench.switchable.ranges, bench.switchable.weights
    names = [site.tensor for site in ranges if site.group in kept]
    names += [site.tensor for site in constants if site.tensor in kept]
    return FloatTensors(tuple(dict.fromkeys(names)), before.mean, after.mean)


def _groups(bench: Bench) -> tuple[list[str], list[str]]:
    """Return the groups that no dot product reads, and all of them, in the order of the model."""
    ranges = {site.group: False for site in bench.switchable.ranges}
    found = {**ranges, **{site.tensor: False for site in bench.switchable.weights}}
    for site in bench.switchable.ranges:
        found[site.group] |= site.is_operand
    for weight in bench.switchable.weights:
        found[weight.tensor] |= weight.is_operand
    plain = [name for name, is_operand in found.items() if not is_operand]
    return plain, [*ranges, *(name for name in plain if name not in ranges)]


class TensorSearch:
    """Looks for tensors, or groups of them, that are worth staying float, as long as there are runs.

    ``score`` measures a model with some of them in float on a few samples.
    """

    def __init__(self, score: Callable[[Collection[str]], Score], runs: int, price: float = _PRICE) -> None:
        """Measure nothing yet; ``runs``: how many runs may be taken; ``price``: dB that each has to bring."""
        self._score, self._runs, self._price = score, runs, price
        self._known: dict[frozenset[str], Score] = {}

    def score(self, kept: Collection[str]) -> Score:
        """Return the errors with these in float; what was asked for before is not measured again."""
        key = frozenset(kept)
        if key not in self._known:
            self._known[key] = self._score(kept)
            self._runs -= len(self._known[key].errors)
        return self._known[key]

    def extended(self, kept: Sequence[str], groups: Sequence[str]) -> list[str]:
        """Return some groups, and with them those of others that are worth their price."""
        start = self.score(kept)
        before = _by_output(start)
        counted = before > 0
        others = [group for group in groups if group not in kept]

        def _left(removed: Removed) -> float:
            score = self.score([*kept, *(others[i] for i in removed)])
            return float((_by_output(score)[counted] / before[counted]).mean())

        if not counted.any():
            return list(kept)
        most = self._runs // len(start.errors)
        return [*kept, *(others[i] for i in largest_shares(len(others), _left, self._price, most))]

    def needed(self, kept: Sequence[str]) -> list[str]:
        """Return those of some groups without which the error of the others is clearly larger."""
        left = list(kept)
        for name in reversed(kept):
            others = [one for one in left if one != name]
            if self.score(left).mean - self.score(others).mean < _NEEDED:
                left = others
        return left


def _by_output(score: Score) -> Float64Array:
    """Return the error of each output, all samples together."""
    return np.asarray(score.errors[:, : score.count].sum(0))
