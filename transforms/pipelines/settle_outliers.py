"""From samples to the outliers of a float model that are moved into its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array
from transforms.channels.move_outliers import move_outliers
from transforms.channels.propose_moves import Operand, find_operands, propose_moves
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.work import models_to_search, numbers_for_products
from transforms.graph.selection import Exclusion
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.confirm_moves import (
    ROWS,
    Moves,
    Sample,
    Trial,
    is_worth_it,
    pick,
    some_rows,
    step_of,
)
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.feeds import Feeds
from transforms.run.instrumented_model import float_outputs
from transforms.run.tensor_sizes import TensorSizes
from transforms.runtime.session import RunOptions

_FEWEST = 4  # samples: two halves of two
_MOST_NUMBERS = 1 << 27
"""Numbers that all samples of a trial quantize, with products in the same unit, about: half a second."""

_FLOAT_BYTES = 4
_LEAST_MODELS, _BOTH_HALVES, _SCALED = 2, 4, 6
"""Models to try moves on one half of the samples, on both, and moves that add no products as well."""

Quantize = Callable[[gs.Graph, list[Feed]], None]
"""Quantizes a prepared graph in place, with ranges from some feeds."""


@dataclass(frozen=True)
class Settled:
    """The moves of outliers, by the name of a tensor, and how many models were run to find them.

    ``floats``: runs of the float model on some samples.
    """

    moves: Moves = field(default_factory=dict)
    models: int = 0
    floats: FloatRuns | None = None


def settle_outliers(
    plan: QuantizationPlan,
    feeds: Callable[[], Feeds],
    quantize: Quantize,
    run: RunOptions | None,
    *,
    exclude: Exclusion = None,
) -> Settled:
    """Return the moves, by the name of a tensor, with which the outputs of the quantized model are better.

    ``plan`` is that of a prepared graph, which is not changed. Layers propose moves; the whole model decides,
    on samples that gave it neither moves nor ranges: a gain of 0.5 dB in the mean over the outputs, and no
    output worse by more than 0.1 dB. If a half of them shows 2 dB either way, the other is not run. No moves,
    without looking at data, if no layer of the model can have any; none of fewer than four samples, or of
    data that can be taken only once. Samples of large tensors or many products are fewer, down to four. Then
    the first half has to be clear, and also if nodes are too many for models of both halves; with still more
    nothing is moved.
    """
    graph, operands = plan.graph, find_operands(plan, exclude=exclude)
    if not operands:
        return Settled()
    source = feeds()
    picked = pick(source)
    if len(picked) < _FEWEST:
        return Settled()
    floats = FloatRuns(graph, picked, run, step=step_of(source))
    affordable = partial(_affordable, plan, picked[0])
    names = [str(one.tensor.name) for one in operands]
    samples, most = _look(floats, names, float_outputs(graph), affordable)
    if most < _LEAST_MODELS:
        return Settled(floats=floats)
    search = _Search(plan, samples, quantize, run, exclude)
    briefly = len(samples) == _FEWEST < len(picked) or most < _BOTH_HALVES
    moves = _settled(search, operands, briefly=briefly, scales=most >= _SCALED)
    return Settled(moves, sum(one.models for one in search.trials), floats)


def _look(
    floats: FloatRuns,
    names: Sequence[str],
    outputs: Sequence[str],
    affordable: Callable[[int, Mapping[str, float]], tuple[int, int]],
) -> tuple[list[Sample], int]:
    """Return what the float model makes of the first samples, with rows of tensors, evenly spread; and how
    many models may be made.

    ``affordable`` returns how many of both of so many samples, from the numbers that each of the tensors has
    on the first.
    """
    seen: dict[str, Float32Array] = {}
    samples: list[Sample] = []
    count = most = len(floats.feeds)
    models = 0

    def _see(name: str, array: Float32Array) -> None:
        seen[name] = some_rows(array, count) if samples else array.copy()

    for feed, made in zip(floats.feeds, floats.watched(names, _see), strict=False):
        if not samples:
            most, models = affordable(most, {name: array.size for name, array in seen.items()})
            count = max(1, ROWS // most)
            seen.update({name: some_rows(array, count) for name, array in seen.items()})
        samples.append(Sample(feed, dict(seen), {name: made[name] for name in outputs}))
        if len(samples) == most:
            break
    return samples, models


def _settled(search: _Search, operands: Sequence[Operand], *, briefly: bool, scales: bool) -> Moves:
    """Return the moves that outputs confirm.

    ``briefly``: on one half of the samples. ``scales``: if they refuse what layers ask for, moves that add no
    products are tried.
    """
    before = search.trial([])
    trial = search.trial(operands, before)
    if trial.moves and is_worth_it(trial, before, briefly=briefly):
        return trial.moves
    scaled = [replace(one, may_split=False, heads=None) for one in operands]
    if briefly or not scales or scaled == operands:
        return {}
    other = search.trial(scaled, before)
    worth = other.moves and other.moves != trial.moves and is_worth_it(other, before)
    return other.moves if worth else {}


def _affordable(plan: QuantizationPlan, feed: Feed, count: int, seen: Mapping[str, float]) -> tuple[int, int]:
    """Return how many of so many samples like one may be compared on, and how many models.

    ``seen``: numbers of tensors that layers read. Sizes of others that no shape tells count as none.
    """
    names = [tensor.name for tensor in plan.measured()]
    known = TensorSizes(plan.graph, names, lambda *_: {}).of(feed).total // _FLOAT_BYTES
    numbers, products = max(known, sum(seen.values())), numbers_for_products(plan.graph, seen)
    samples = min(count, max(_FEWEST, int(_MOST_NUMBERS // max(numbers + products, 1)) // 2 * 2))
    return samples, models_to_search(plan.graph, numbers, products, count, samples // 2)


@dataclass(frozen=True)
class _Search:
    """Quantizes copies of a graph with moves of outliers, on samples of what the float model makes."""

    plan: QuantizationPlan
    samples: Sequence[Sample]
    quantize: Quantize
    run: RunOptions | None
    exclude: Exclusion
    trials: list[Trial] = field(default_factory=list)

    def trial(self, operands: Sequence[Operand], plain: Trial | None = None) -> Trial:
        """Return a trial of the moves that some operands ask for; ``plain``: that without moves."""

        def _choose(seen: Sequence[Sample]) -> Moves:
            rows = {
                str(one.tensor.name): [sample.rows[one.tensor.name] for sample in seen] for one in operands
            }
            return propose_moves(operands, rows, clips=self.plan.scheme.calibrate_method != "MinMax")

        def _quantize(moves: Moves, seen: list[Feed]) -> gs.Graph:
            copy = copy_graph(self.plan.graph)
            move_outliers(copy, moves, exclude=self.exclude)
            self.quantize(copy, seen)
            return copy

        self.trials.append(Trial(_choose, _quantize, self.samples, self.run, plain))
        return self.trials[-1]
