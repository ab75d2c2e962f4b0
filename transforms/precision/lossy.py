"""The few layers of a quantized model that carry most of its loss, in float where that is worth its price.

Each layer's share of the error is what it makes alone, found by halves in one session in which layers are
switched. As many of them are put back as leave most dB beyond their price. The model is then quantized with
these in float, and judged on samples that did not rank them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.metrics import decibels
from transforms.judge.constants import FEWEST, FINE, WORTH
from transforms.judge.errors import gain
from transforms.judge.judge import Judge
from transforms.judge.sample_roles import ranking, taken
from transforms.model.copy_graph import copy_graph
from transforms.precision.chosen import LossyLayers
from transforms.precision.finer_scheme import IN_FLOAT, bytes_of_numbers, can_be_named, naming
from transforms.precision.switched_layers import SwitchedLayers, Trials
from transforms.runtime.session import RunOptions
from transforms.search.group_search import shares_of_parts

if TYPE_CHECKING:
    from transforms.precision.reach import Build, Built

PER_PERCENT = 0.3
"""dB that layers in float have to bring for each percent of the model's bytes that they add: the table
"Layers in float for the outputs" in docs/measurements.md."""

ONE_OF = 3
"""One of so many layers at most stays float: with more, the model is another one."""

LEAST_RUNS, MOST_RUNS = 48, 256
"""Runs in which layers are ranked: as many as there is time for, within these bounds."""

_LEAST = 0.05  # share of what is left that a layer leaves: shares do not quite add up
_TRIED = (0.5, 1.0, 2.0)  # times as many layers as their shares say, which are measured


def lossy_layers(
    first: Built,
    float_graph: gs.Graph,
    names: Callable[[], Set[str]],
    build: Build,
    feeds: Sequence[Feed],
    judge: Judge,
    runs: int,
    run: RunOptions | None = None,
) -> LossyLayers:
    """Return the layers that are worth staying float, if the judge accepts them; maybe none.

    ``first``: the quantized model and its scheme; ``float_graph``: the float model as it was quantized; both
    stay as they are. ``names``: those of nodes that a scheme can name. ``feeds``: samples that
    rank, in about so many ``runs``; the judge has others. Raises ValueError as :class:`SwitchedLayers` does.
    """
    graph, scheme = first
    before = judge.errors_of(copy_graph(graph)).at_most(FINE)
    if before.mean + WORTH >= FINE:
        return LossyLayers(scheme)
    model = SwitchedLayers(copy_graph(float_graph), copy_graph(graph), run)
    able, size = names(), bytes_of_numbers(graph)
    kept = _Search(model, feeds, able, size, runs).best()
    count, parts = len(model.parts), tuple(model.parts[i] for i in sorted(kept))
    if not kept:
        return LossyLayers(scheme, count)
    del model  # one session at a time
    built, used = build(naming(scheme, (node for part in parts for node in part.nodes), able, IN_FLOAT))
    sizes = size, bytes_of_numbers(built)
    won = gain(judge.errors_of(copy_graph(built)).at_most(FINE), before)
    is_worth = won.is_accepted(price(sizes[1] / size - 1, len(parts)))
    return LossyLayers(used if is_worth else scheme, count, parts, won, judge.count, *sizes, is_worth)


def price(more: float, layers: int) -> float:
    """Return the dB that layers in float have to bring; ``more``: bytes of numbers that they add, as a share.

    This is the rule: ``PER_PERCENT`` for each percent of bytes, and ``WORTH`` for each layer, for its time.
    """
    return PER_PERCENT * 100 * max(more, 0.0) + WORTH * layers


class _Search:
    """Looks for the layers whose gain in float exceeds their price most, on samples that rank them."""

    def __init__(
        self, model: SwitchedLayers, feeds: Sequence[Feed], names: Set[str], size: int, runs: int
    ) -> None:
        """Take the model with switches, and the names of nodes that a scheme can name.

        ``size``: bytes of the numbers of the quantized model. Each error takes a run of each of some samples,
        as many as come to ``runs`` if all layers were looked at one by one, within bounds.
        """
        count, parts = len(feeds), model.parts
        runs = min(runs, MOST_RUNS)
        ranked = ranking(count, runs, len(parts))
        measured = ranking(count, max(runs, FEWEST * len(parts)), len(parts))
        self._trials = Trials(model, taken(feeds, measured))
        self._ranks = self._trials if ranked == measured else Trials(model, taken(feeds, ranked))
        self._looks = max(runs, LEAST_RUNS) // len(ranked)
        self._able = [i for i, part in enumerate(parts) if can_be_named(part, names)]
        self._more = {i: model.more_bytes(parts[i]) / size for i in self._able}
        self._most = len(parts) // ONE_OF

    def best(self) -> list[int]:
        """Return the parts that are best kept in float, the first that are so; maybe none."""
        order, count = self._order()
        least = self._quality([])
        counts = {min(round(count * times), len(order)) for times in _TRIED} - {0} if count else ()
        values = {0: 0.0}
        for some in sorted(counts):
            kept = order[:some]
            values[some] = self._quality(kept) - least - self._price(kept)
        return order[: max(values, key=values.__getitem__)]

    def _order(self) -> tuple[list[int], int]:
        """Return the parts by what each next one is worth, and how many of them are worth most together."""
        shares, rest = self._shares()
        order, values = list[int](), [0.0]
        while shares and len(order) < self._most:
            worth = {i: self._worth(i, share, rest) for i, share in shares.items()}
            part = max(worth, key=worth.__getitem__)
            order.append(part)
            values.append(values[-1] + worth[part])
            rest = max(rest - shares.pop(part), _LEAST * rest)
        return order, int(np.argmax(values))

    def _worth(self, part: int, share: float, rest: float) -> float:
        return decibels(max(1 - share / rest, _LEAST)) - self._price([part])

    def _price(self, parts: Sequence[int]) -> float:
        return price(sum(self._more[i] for i in parts), len(parts))

    def _shares(self) -> tuple[dict[int, float], float]:
        """Return the share of the error of each part that was told apart, and that of all together."""
        everything = self._errors(self._ranks, self._ranks.everything)
        counted = everything > 0
        if not counted.any():
            return {}, 0.0

        def _left(removed: Set[int]) -> float:
            on = {part for place, part in enumerate(self._able) if place not in removed}
            return float((self._errors(self._ranks, on)[counted] / everything[counted]).mean())

        found, _ = shares_of_parts(len(self._able), _left, WORTH, self._looks)
        single = {self._able[part.start]: share for part, share in found.items() if len(part) == 1}
        return {part: share for part, share in single.items() if share > 0}, sum(found.values())

    def _quality(self, kept: Sequence[int]) -> float:
        """Return the mean SQNR over outputs in dB, of each at most ``FINE``."""
        errors = self._errors(self._trials, self._trials.everything.difference(kept))
        found = [min(decibels(error), FINE) for error in errors if np.isfinite(error)]
        return float(np.mean(found)) if found else 0.0

    def _errors(self, trials: Trials, on: Set[int]) -> np.ndarray:
        """Return the error of each output by its power, [outputs]; 0 of one that is zeros."""
        pooled = (trials.pooled(on, name) for name in trials.parts_of(trials.model.outputs))
        pairs = ((one.error_energy, one.baseline_energy) for one in pooled)
        return np.array([error / power if power else 0.0 for error, power in pairs])
