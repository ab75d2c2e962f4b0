"""Measure a metric of a model's outputs against those of the float model, on the samples of a judge.

All choices of formats are measured here: finer layers for a target, formats in mixed precision, and the model
that is written. The judge has run the float model once and keeps its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Feed
from ops.metrics import Sums, decibels
from transforms.calibrate.calibration import fold_of
from transforms.full_range.recorded_shifts import shifts_within
from transforms.graph.number_shapes import in_words
from transforms.graph.output_view import ALL
from transforms.graph.state_outputs import found_pairs
from transforms.judge.channel_groups import split
from transforms.judge.constants import MOST_SAMPLES
from transforms.judge.errors import Errors, error_of_decibels, jackknife
from transforms.judge.figure_error import figure_of
from transforms.judge.judge import Judge
from transforms.judge.reference import KnownNames
from transforms.judge.shape_watch import same_shapes
from transforms.judge.softmax_outputs import in_shape, show_before_softmax, softmax_outputs
from transforms.model.copy_graph import copy_graph
from transforms.run.run_each import run_each
from transforms.runtime.session import RunOptions
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.gate import Gate
from transforms.search.output_metrics import (
    METRICS,
    Outputs,
    OutputsPair,
    least_of,
    least_sqnr,
    lost_rows,
    lost_top1,
    share_of_rows,
    sums_of,
)
from transforms.search.target import EVALUATE, LOST_TOP1, Scored, Target
from transforms.search.user_metric import SampleSet, load_metric

T = TypeVar("T")

Progress = Callable[[int, str], None]
"""Called with the number of models measured and the metric of the last one, in words."""

ModelOf = Callable[[int], gs.Graph]
"""Makes the model for a fold: with ranges from the samples of all other folds."""

Measure = Callable[[Iterable[OutputsPair]], Scored]
"""Returns the metric for pairs of outputs, of the float model and of another, one pair for each sample."""


class Bench:
    """Measures models on the samples of a judge.

    ``names``: outputs that are compared; ``expected``: those of the float model, one dictionary for each of
    the ``feeds``. ``left_out``: outputs that do not count: key-value caches of a model with logits, and for
    ``lost_top1`` states that are fed back, whose rows have no answer. ``notes``: on outputs that are replaced
    by others. ``view``: how outputs are compared; a user's function gets them unchanged.
    """

    def __init__(
        self,
        float_graph: gs.Graph,
        judge: Judge,
        measure: Measure,
        target: Target | None = None,
        progress: Progress | None = None,
        *,
        index: int = -1,
        whole: bool = False,
        saturated: Collection[str] = (),
        of_fold: ModelOf | None = None,
    ) -> None:
        """Take the samples and float outputs of a judge; ``target``: the target that ``measure`` is for.

        ``index``: of the output that counts, -1 for all. ``whole``: all outputs count, of any type.
        ``saturated``: outputs measured before their Softmax, as ``float_graph`` has them already.
        ``of_fold``: makes the model to score for each fold of the feeds, if the feeds gave its ranges. Raises
        ValueError for an index out of range, and for a model without an output of a floating type.
        """
        self._judge, self._measure, self._progress = judge, measure, progress
        self._is_whole, self._saturated, self._of_fold = whole, saturated, of_fold
        self.target, self.metric = target, target.metric if target else "sqnr"
        self.view, reference = judge.reference.view, judge.reference
        judged = reference.judged_by(index)
        counted = list(judged) if whole else reference.outputs_of(judged)
        if not counted:
            words = "the model has no output of a floating type to hold to a target"
            raise ValueError(next(iter(in_words(judged)), words))
        # what counts, less states for a share of rows: all outputs may be states
        states = set(found_pairs(float_graph).values()) if self.metric == LOST_TOP1 and not whole else ()
        self.notes = [] if whole else in_words(judged)
        self.names = [name for name in counted if name not in states] or counted
        fed_back = () if whole else self.view.caches
        left_out = {*fed_back, *(name for name in counted if name not in self.names)}
        self.left_out = tuple(name for name in judged if name in left_out)
        self.feeds, self.expected = reference.feeds, reference.made(self.names)
        self._lengths = [] if whole else [name for name in judged if name in reference.lengths]
        self._count = 0

    @property
    def run(self) -> RunOptions:
        """The options with which models run."""
        return self._judge.run or RunOptions()

    def viewed(self, graph: gs.Graph) -> gs.Graph:
        """Return a copy of a model whose saturated outputs are replaced by the inputs of their Softmax."""
        copy = copy_graph(graph)
        shown = [name for name in softmax_outputs(copy) if name in self._saturated]
        show_before_softmax(copy, shown, alone=True)
        return copy

    def score(self, graph: gs.Graph) -> float:
        """Return the metric of a model, which is not changed."""
        return self.scored(graph).value

    def scored(self, graph: gs.Graph) -> Scored:
        """Return the metric of a model with its standard error, if the measure has one."""
        missing = {name: np.zeros(0, np.float32) for name in self.expected[0]}  # counts as another shape
        outputs = self._outputs(graph) if self._of_fold is None else self._outputs_in_folds(self._of_fold)
        lengths = self._judge.reference.made(self._lengths)
        fitting = (  # a sample with an output of another length counts as failed in all outputs
            {**missing, **(sample if same_shapes(expected, sample) else {})}
            for expected, sample in zip(lengths, outputs, strict=True)
        )
        counted = ({name: sample[name] for name in missing} for sample in fitting)
        value = self._measured(map(in_shape, counted, self.expected))
        self._count += 1
        if self._progress and self.target:
            self._progress(self._count, self.target.text(value.value))
        return value

    def _outputs(self, graph: gs.Graph, fold: int | None = None) -> Iterable[Feed]:
        """Yield the outputs of a model on the feeds, or on those of one fold."""
        run = self._judge.opened(self.viewed(graph), shifts_within(graph))
        feeds = [feed for place, feed in enumerate(self.feeds) if fold in (None, fold_of(place))]
        return run_each(run, feeds, self._judge.run)

    def _outputs_in_folds(self, of_fold: ModelOf) -> Iterable[Feed]:
        folds = [fold_of(place) for place in range(len(self.feeds))]
        outputs = {fold: iter(list(self._outputs(of_fold(fold), fold))) for fold in sorted(set(folds))}
        return [next(outputs[fold]) for fold in folds]

    def float_score(self) -> float:
        """Return the metric of the float model itself."""
        return self.scored_float().value

    def scored_float(self) -> Scored:
        """Return the metric of the float model with its standard error, if the measure has one."""
        return self._measured(self.expected)

    def _measured(self, outputs: Iterable[Outputs]) -> Scored:
        view = ALL if self._is_whole else self.view
        groups = self._judge.reference.groups if self.metric == "sqnr" and not self._is_whole else {}

        def _of(sample: Outputs) -> Outputs:
            return split(view.of(sample), groups)

        return self._measure(zip(map(_of, self.expected), map(_of, outputs), strict=True))


def goal_bench(
    float_graph: gs.Graph,
    feeds: Sequence[Feed],
    goal: Target,
    run: RunOptions | None = None,
    progress: Progress | None = None,
    known: KnownNames | None = None,
    of_fold: ModelOf | None = None,
) -> Bench:
    """Return the bench of a target that holds for each output, before the Softmax if the target says so.

    ``known``: as of the judge; ``of_fold``: as of the bench.
    """
    most = None if isinstance(goal, Gate) else MOST_SAMPLES
    saturated = [*softmax_outputs(float_graph)] if goal.before_softmax else []
    if saturated:
        float_graph = copy_graph(float_graph)
        show_before_softmax(float_graph, saturated, alone=True)
    judge = Judge(float_graph, feeds, run, most=most, known=known)
    if not isinstance(goal, Gate) or goal.figures is None:
        measure = partial(goal_scored, goal, in_folds=of_fold is not None)
        return Bench(float_graph, judge, measure, goal, progress, saturated=saturated, of_fold=of_fold)

    def _measure(pairs: Iterable[OutputsPair]) -> Scored:
        return goal.scored(_samples(pairs, judge.reference.feeds, goal.places))

    return Bench(float_graph, judge, _measure, goal, progress, whole=goal.whole, saturated=saturated)


def _samples(
    pairs: Iterable[OutputsPair], feeds: Sequence[Feed], places: Sequence[int] | None = None
) -> SampleSet:
    """Return the samples as user metrics take them; ``places``: their places in the data, else 0, 1, ..."""
    expected, outputs = zip(*pairs, strict=True)
    return SampleSet(outputs, expected, feeds, places or range(len(feeds)))


def mixing_bench(
    float_graph: gs.Graph,
    feeds: Sequence[Feed],
    rule: MixingRule,
    run: RunOptions,
    labels: NDArray[np.integer] | None = None,
    known: KnownNames | None = None,
) -> Bench:
    """Return the bench of mixed precision, on all feeds: its target holds for all outputs together.

    ``labels`` [n]: the right class of each row of the outputs.
    """
    judge = Judge(float_graph, feeds, run, most=None, known=known)
    measure, whole = _mixing_measure(rule, labels, feeds), bool(rule.evaluate)
    return Bench(float_graph, judge, measure, rule.bound, index=rule.output_index, whole=whole)


def goal_metric(goal: Target, pairs: Iterable[OutputsPair]) -> float:
    """Return the metric of a target over samples; the SQNR is that of the worst output."""
    if goal.metric == "sqnr":
        return least_sqnr(pairs)
    return METRICS[goal.metric].score(pairs) if goal.metric in METRICS else lost_top1(pairs)


def goal_scored(goal: Target, pairs: Iterable[OutputsPair], *, in_folds: bool = False) -> Scored:
    """Return the metric of a target with its standard error by the jackknife over samples, 0 of one sample.

    ``in_folds``: a model without their ranges has run the samples of each fold. All choices were made on the
    same samples, so that the SQNR is the figure of summaries (:mod:`transforms.judge.figure_error`): of 39
    models of ResNet-8, made with 8 samples, 85 % were within 0.5 dB of its lower end on other samples. Of
    those that were judged by the jackknife on four samples, with ranges from the other four, 44 % were.
    """
    if goal.metric == "sqnr" and in_folds:
        scored = _expected([sums_of(pair) for pair in pairs])
    elif goal.metric == "sqnr":
        sums = [sums_of(pair) for pair in pairs]
        value, left_out = least_of(sums), [least_of(subset) for subset in _without_each(sums)]
        scored = Scored(value, error_of_decibels(value, left_out), len(sums))
    elif goal.metric in METRICS:
        scored = _scored(list(pairs), METRICS[goal.metric].score)
    else:
        scored = _scored([lost_rows(pair) for pair in pairs], share_of_rows)
    return replace(scored, in_folds=in_folds)


def _expected(sums: Sequence[Mapping[str, Sums]]) -> Scored:
    """Return the SQNR of the worst output as expected on other data, from the sums of samples in folds."""
    noise, power = (
        np.array([[getattr(sums_of_output, kind) for sums_of_output in sample.values()] for sample in sums])
        for kind in ("error_energy", "baseline_energy")
    )
    folds = [fold_of(place) for place in range(len(sums))]
    folded = Errors(np.nan_to_num(noise, nan=np.inf), power, noise.shape[1])
    figures = (figure_of(folded.of_outputs([output]), folds) for output in range(folded.count))
    error, spread = max(figures, key=lambda figure: np.nan_to_num(figure[0], nan=np.inf))
    return Scored(decibels(error), spread, len(sums))


def _scored(samples: Sequence[T], measure: Callable[[Sequence[T]], float]) -> Scored:
    left_out = [measure(subset) for subset in _without_each(samples)]
    return Scored(measure(samples), jackknife(left_out) if left_out else 0.0, len(samples))


def _without_each(samples: Sequence[T]) -> list[list[T]]:
    """Return the samples without each of them in turn; an empty list for one sample."""
    places = range(len(samples))
    return [[samples[i] for i in places if i != place] for place in places if len(places) > 1]


def _mixing_measure(rule: MixingRule, labels: NDArray[np.integer] | None, feeds: Sequence[Feed]) -> Measure:
    """Return the measure for the target of a rule; a user's function gets the outputs of all samples."""
    metric = rule.bound.metric if rule.bound else "sqnr"
    if metric == EVALUATE:
        return lambda pairs: Scored(load_metric(rule.evaluate)(_samples(pairs, feeds)))
    if metric == LOST_TOP1:
        return lambda pairs: Scored(lost_top1(pairs, labels))
    return lambda pairs: Scored(METRICS[metric].score(pairs))


def outputs_of(names: Sequence[str], outputs: Feed) -> Feed:
    """Return the outputs of these names, as far as they are there."""
    return {name: outputs[name] for name in names if name in outputs}
