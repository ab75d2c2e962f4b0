"""Which tensors stay float because eight bits of them cost the outputs too much.

A ratio whose divisor comes near zero, a difference of large numbers: one tensor may hold nearly all of the
error of a model, and no range of it helps. A model in which each tensor can be left in float shows which
(:mod:`transforms.search.largest_shares`), on samples that gave no ranges. Tensors that a dot product reads
are left in float only where the outputs are of no use otherwise, since that product loses its integers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ops.array_types import Float64Array
from transforms.choose_ranges.bench import Bench
from transforms.choose_ranges.measure_outputs import Score, drags, falls, gain
from transforms.choose_ranges.setting import Setting
from transforms.search.largest_shares import Removed, largest_shares

log = logging.getLogger(__name__)

_FINE = 40.0
"""dB of outputs from which on no tensor is looked for."""

_SEARCHED_ON = 8
"""Samples at most that the search runs; all of them decide."""

_FEWEST_RUNS = 2 * _SEARCHED_ON
"""Runs without which nothing can be found: of the model as it is, and of one with all tensors in float."""

_LAST_RUNS = 24 * _SEARCHED_ON
"""Runs that a model may take whose outputs are of no use otherwise."""

_PRICE = 3.0
"""dB that each tensor in float has to bring: it halves the error."""

_NEEDED = 1.0
"""dB that are lost without it beside the others."""

_USELESS = 10.0
"""dB below which outputs are of no use: operands of dot products are looked at, too."""


@dataclass(frozen=True)
class FloatTensors:
    """The names of tensors that stay float, and dB of the outputs without and with that."""

    names: Sequence[str]
    before: float
    after: float

    def __str__(self) -> str:
        shown = ", ".join(f"'{name}'" for name in self.names[:3])
        more = f" and {len(self.names) - 3} more" if len(self.names) > 3 else ""
        return (
            f"Kept in float for the outputs: {shown}{more} "
            f"({self.before:.1f} -> {self.after:.1f} dB on held-out samples)"
        )


def runs_to_search(decibels: float, spare: int) -> int:
    """Return how many runs a search may take for outputs of so many dB, 0 if it is not worth them."""
    runs = max(spare, _LAST_RUNS) if decibels < _USELESS else spare
    return runs if decibels < _FINE and runs >= _FEWEST_RUNS else 0


def float_tensors(bench: Bench, setting: Setting, runs: int) -> FloatTensors | None:
    """Return the tensors that stay float with a setting, None if none do.

    ``bench`` has switches. ``runs``: how many runs the search may take.
    """
    search = _Search(bench, setting, runs)
    kept = search.extended([], search.plain)
    if search.score(kept).mean < _USELESS:
        kept = search.extended(kept, search.groups)
    kept = search.needed(kept)
    if not kept:
        return None
    before, after = (bench.score_without(setting, one) for one in ((), kept))
    shown, brings = gain(after, before), after.mean - before.mean
    log.info("%d in float: %.2f dB, %+.2f +- %.2f", len(kept), after.mean, shown.decibels, shown.error)
    if brings < _PRICE * len(kept) or shown.is_loss or drags(after, before) or falls(after, before):
        return None
    ranges, constants = bench.switchable.ranges, bench.switchable.weights
    names = [site.tensor for site in ranges if site.group in kept]
    names += [site.tensor for site in constants if site.tensor in kept]
    return FloatTensors(tuple(dict.fromkeys(names)), before.mean, after.mean)


class _Search:
    """Looks for groups of tensors on a few samples, as long as there are runs.

    ``groups``: all of them, in the order of the model; ``plain``: those that no dot product reads.
    """

    def __init__(self, bench: Bench, setting: Setting, runs: int) -> None:
        self._bench, self._setting, self._runs = bench, setting, runs
        self._known: dict[frozenset[str], Score] = {}
        ranges = {site.group: False for site in bench.switchable.ranges}
        found = {**ranges, **{site.tensor: False for site in bench.switchable.weights}}
        for site in bench.switchable.ranges:
            found[site.group] |= site.is_operand
        for weight in bench.switchable.weights:
            found[weight.tensor] |= weight.is_operand
        self.plain = [name for name, is_operand in found.items() if not is_operand]
        self.groups = [*ranges, *(name for name in self.plain if name not in ranges)]

    def score(self, kept: Collection[str]) -> Score:
        """Return the errors with these groups in float, on the first samples."""
        key = frozenset(kept)
        if key not in self._known:
            self._known[key] = self._bench.score_without(self._setting, kept, _SEARCHED_ON)
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
        return [*kept, *(others[i] for i in largest_shares(len(others), _left, _PRICE, most))]

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
