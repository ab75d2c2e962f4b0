"""From samples to the outliers of a float model that are moved into its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float32Array
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.work import models_to_search, numbers_for_products
from transforms.graph.mixed_channels import Recall, anew
from transforms.graph.residual_streams import Stream
from transforms.graph.selection import Exclusion
from transforms.model.copy_graph import copy_graph
from transforms.move_outliers import move_outliers
from transforms.outliers.choose_moves import choose_moves
from transforms.outliers.confirm_moves import Moves, Trial, is_clear, is_worth_it, is_worth_it_twice
from transforms.outliers.find_operands import find_operands
from transforms.outliers.operand import Operand
from transforms.outliers.outlying_streams import find_streams, is_read, outlying_streams
from transforms.outliers.sample_rows import ROWS, Sample, pick, some_rows, step_of
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.feeds import Feeds
from transforms.run.instrumented_model import float_outputs
from transforms.run.tensor_sizes import TensorSizes
from transforms.runtime.session import RunOptions
from transforms.scheme.outlier_move import OutlierMove

_FEWEST = 4  # samples: two halves of two
_MOST_NUMBERS = 1 << 27
"""Numbers that all samples of a trial quantize, with products in the same unit, about: half a second."""

_FLOAT_BYTES = 4
_LEAST_MODELS, _ROTATED, _BOTH_HALVES, _SCALED = 2, 3, 4, 6
"""Models to try moves on one half of the samples, rotations besides, on both halves, and moves that add no
products as well."""

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
    recall: Recall = anew,
) -> Settled:
    """Return the moves, by the name of a tensor, with which the outputs of the quantized model are better.

    ``plan`` is that of a prepared graph, which is not changed. Layers propose moves; the whole model decides,
    on samples that gave it neither moves nor ranges: a gain of 0.5 dB in the mean over the outputs, and no
    output worse by more than 0.1 dB. If a half of them shows 2 dB either way, the other is not run. Residual
    streams with outliers are rotated if that gains as much over each half, against what was best before, or
    3 dB over the first. No moves, without looking at data, if no layer of the model can have any; none of
    fewer than four samples, or of data that can be taken only once. Samples of large tensors or many
    products are fewer, down to four. Then the first half has to be clear, and also if nodes are too many for
    models of both halves; with more nodes nothing is rotated, with still more nothing is moved. ``recall``
    remembers rotated weights.
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
    streams = find_streams(plan, exclude=exclude)
    names = [*(one.tensor.name for one in operands), *(one.name for one in streams)]
    samples, most = _look(floats, list(dict.fromkeys(names)), float_outputs(graph), affordable)
    if most < _LEAST_MODELS:
        return Settled(floats=floats)
    search = _Search(plan, samples, quantize, run, exclude, recall)
    before = search.trial(graph, [])
    outlying = outlying_streams(streams, operands, samples) if most >= _ROTATED else []
    briefly = len(samples) == _FEWEST < len(picked) or most < _BOTH_HALVES
    scales = most >= _SCALED
    moves = _settled(search, operands, outlying, before, briefly=briefly, scales=scales)
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


def _settled(
    search: _Search,
    operands: Sequence[Operand],
    outlying: Sequence[Stream],
    before: Trial,
    *,
    briefly: bool,
    scales: bool,
) -> Moves:
    """Return the moves that outputs confirm.

    ``before``: the trial without any. ``briefly``: on one half of the samples. ``scales``: if they refuse
    what layers ask for, moves that add no products are tried.
    """
    graph = search.plan.graph
    trial = search.trial(graph, operands, before)
    rotated = search.rotated(outlying, operands) if outlying else None
    if rotated and is_clear(rotated.trial, [before, trial]):
        return rotated.moves
    worth = bool(trial.moves) and is_worth_it(trial, before, briefly=briefly)
    if briefly:
        return trial.moves if worth else {}
    if not worth:
        refused, scaled = trial.moves, [replace(one, may_split=False, heads=None) for one in operands]
        trial = search.trial(graph, scaled, before) if scales and scaled != operands else before
        if not trial.moves or trial.moves == refused or not is_worth_it(trial, before):
            trial = before
    return rotated.moves if rotated and is_worth_it_twice(rotated.trial, trial) else trial.moves


@dataclass(frozen=True)
class _Rotated:
    """A trial of a graph in which streams are rotated, by the names of their tensors."""

    trial: Trial
    rotations: Moves

    @property
    def moves(self) -> Moves:
        """The rotations, with the moves that all samples ask for beside them."""
        return {**self.rotations, **self.trial.moves}


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
    recall: Recall
    trials: list[Trial] = field(default_factory=list)

    def trial(self, source: gs.Graph, operands: Sequence[Operand], plain: Trial | None = None) -> Trial:
        """Return a trial of the moves that some operands of a graph ask for.

        ``plain``: the trial of the same graph without moves.
        """

        def _choose(seen: Sequence[Sample]) -> Moves:
            clips = self.plan.scheme.calibrate_method != "MinMax"
            return choose_moves(operands, seen, clips=clips)

        def _quantize(moves: Moves, seen: list[Feed]) -> gs.Graph:
            copy = copy_graph(source)
            move_outliers(copy, moves, exclude=self.exclude, recall=self.recall)
            self.quantize(copy, seen)
            return copy

        self.trials.append(Trial(_choose, _quantize, self.samples, self.run, plain))
        return self.trials[-1]

    def rotated(self, streams: Sequence[Stream], operands: Sequence[Operand]) -> _Rotated:
        """Return a trial of a graph in which streams are rotated."""
        rotations = {stream.name: OutlierMove(rotated=True) for stream in streams}
        copy = copy_graph(self.plan.graph)
        move_outliers(copy, rotations, exclude=self.exclude, recall=self.recall)
        others = [one for one in operands if not any(is_read(stream, one) for stream in streams)]
        return _Rotated(self.trial(copy, others), rotations)
