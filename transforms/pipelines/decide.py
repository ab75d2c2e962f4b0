"""What a scheme leaves open, decided by the outputs of the model on samples: moves, one after the other."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field, replace

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate import Progress
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.calibrate.calibration import Calibration
from transforms.full_range.apply_full_range import wants_full_range
from transforms.graph.dot_products import is_dot_product
from transforms.graph.lazy_values import is_weightless
from transforms.graph.some_names import some_names
from transforms.judge.budget import Budget, too_large
from transforms.judge.checked_samples import checked
from transforms.judge.constants import FEW_SAMPLES, FEWEST, FINE, MOST_COUNTED, MOST_SAMPLES, PRICE, USELESS
from transforms.judge.first_samples import FirstSamples
from transforms.judge.judge import Judge
from transforms.moves.float_tensors import (
    FLOAT16,
    large_tensors,
    rounded,
    try_float_tensors,
    try_given_tensors,
)
from transforms.moves.improve import Best, Form, Measure
from transforms.moves.lost_rows import loses_tokens, try_lost_rows
from transforms.moves.outliers import try_channels, try_equalized, try_outliers
from transforms.moves.record import Record
from transforms.moves.settings import try_biases, try_ranges_and_scales, try_room
from transforms.pipelines.quantize_steps import Quantized, move_named_outliers, plan_of
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import SchemeTargets
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO, FLOAT32

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decided:
    """A scheme with nothing left open, statistics if they were measured, and the judge if there is one."""

    scheme: Scheme
    statistics: Calibration | None = None
    judge: Judge | None = None
    record: Record = field(default_factory=Record)
    memory: WeightMemory | None = None

    def moved(self, asked: Scheme) -> Scheme:
        """Return the scheme with the outliers that the one asked for did not name: they are to be moved."""
        found = {name: move for name, move in self.scheme.outliers.items() if name not in asked.outliers}
        return self.scheme.with_(outliers=found)


def decide(
    graph: gs.Graph,
    asked: Scheme,
    targets: SchemeTargets,
    data: CalibrationData | None,
    progress: Progress | None = None,
) -> Decided:
    """Return the scheme that outputs on samples decide for a prepared graph, which is not changed.

    What the scheme says is kept; what it leaves open follows rules where there are no samples, too few, or
    the model is too large. Raises as :func:`transforms.calibrate.calibrate_plan.calibrate_plan` does.
    """
    ruled = asked.by_rule()
    if data is None or not data.decides or not _has_moves(asked):
        return Decided(ruled)
    if too_large(graph) or data.memory_limit is not None:
        why = "Decided by rule: the model is too large to compare outputs, or memory is limited"
        return Decided(ruled, record=Record(notes=[why]))
    return _Decision(graph, asked, targets, data, progress).made()


def _has_moves(asked: Scheme) -> bool:
    return asked.is_open or asked.move_outliers or asked.keep_float or wants_full_range(asked)


class _Decision:
    """One decision: what its steps share."""

    def __init__(
        self,
        graph: gs.Graph,
        asked: Scheme,
        targets: SchemeTargets,
        data: CalibrationData,
        progress: Progress | None,
    ) -> None:
        self._graph, self._asked = graph, asked
        self._ruled = asked.by_rule().with_(equalize_layers=asked.equalize_layers is True)
        self._targets, self._data, self._progress = targets, data, progress
        self._memory = _weights_of(graph)
        self._record = Record()
        self._samples = FirstSamples(data.feeds(graph), graph, MOST_SAMPLES + FEW_SAMPLES)

    def made(self) -> Decided:
        """Measure, judge, and return what was decided."""
        first = replace(self._data, source=self._samples.feeds)
        statistics = self._measure(self._graph, self._ruled, first, self._progress)
        feeds = self._samples.again()
        judge = Judge(self._graph, feeds[: checked(len(feeds)).start], self._data.run)
        decided = Decided(self._ruled, statistics, judge, self._record, self._memory)
        if statistics is None:
            return replace(decided, scheme=self._without_ranges(judge))
        if not judge.can_judge:
            why = "1 sample is too few, or no output is of a floating type"
            self._record.notes.append(f"Decided by rule: {why}")
            return self._by_rule(statistics)
        start = self._ruled if self._asked.per_channel != AUTO else self._ruled.with_(per_channel=True)
        form = Form(self._graph, start, statistics, judge, self._plan_of, self._memory)
        budget = Budget.of(self._graph, statistics)
        log.info("%d runs, a model costs %d", budget.runs, budget.opened)
        least = min(judge.count, FEW_SAMPLES) if judge.reference.logits else FEWEST
        judge.count = max(budget.samples(judge.count), least)
        best = Best(form, budget, self._record)
        self._improve(best)
        return replace(decided, scheme=best.scheme, statistics=best.form.statistics, judge=best.form.judge)

    def _by_rule(self, statistics: Calibration) -> Decided:
        """Return the rules; without statistics where they change the graph, and samples can be read again."""
        ruled = self._asked.by_rule()
        if ruled == self._ruled or self._again() is None:
            return Decided(self._ruled, statistics, None, self._record, self._memory)
        return Decided(ruled, record=self._record)

    def _improve(self, best: Best) -> None:
        asked, exclude = self._asked, self._targets.excluded
        again = self._again()
        if asked.by_rule() != self._ruled and again is not None:
            try_equalized(best, exclude, again)
        try_ranges_and_scales(best, asked)
        before = best.form
        if asked.move_outliers and not asked.outliers and again is not None:
            try_outliers(best, exclude, self._rewrite, again)
            try_channels(best, exclude, self._rewrite, again, gates=not asked.target)
        if best.form is not before:
            try_ranges_and_scales(best, asked)
        try_biases(best, asked)
        try_room(best, asked)
        if asked.keep_float and not asked.target:
            (try_lost_rows if loses_tokens(best) else try_float_tensors)(best)

    def _without_ranges(self, judge: Judge) -> Scheme:
        """Return the scheme of formats without ranges, with the tensors in float that they do not suit.

        Numbers beyond float16 become its largest one, which is as good as any in a mask: the judge decides.
        """
        plan = self._plan_of(self._graph, self._ruled)
        if not self._asked.keep_float or self._asked.target or not rounded(plan) or plan.measured():
            return self._ruled
        data = replace(self._data, source=judge.reference.feeds, cache=None)
        near, beyond = large_tensors(self._graph, plan, data)
        kept = self._ruled.with_(tensors={**self._ruled.tensors, **dict.fromkeys(near, FLOAT32)})
        if near:
            self._record.notes.append(f"Kept in float, near the largest float16: {some_names(near)}")
        if not judge.can_judge:
            return kept
        form = Form(self._graph, kept, None, judge, self._plan_of, self._memory)
        best = Best(form, Budget(sys.maxsize), self._record)
        if beyond:
            try_given_tensors(best, beyond, 2 * PRICE)
        try_float_tensors(best, 2 * PRICE, FINE if rounded(plan, FLOAT16) else USELESS)
        return best.scheme

    def _plan_of(self, graph: gs.Graph, scheme: Scheme) -> QuantizationPlan:
        return plan_of(graph, scheme, self._targets, Quantized())

    def _rewrite(self, graph: gs.Graph, scheme: Scheme) -> None:
        move_named_outliers(graph, scheme, self._targets, Quantized())

    def _again(self) -> Measure | None:
        """Return what measures another form on the same samples; None if some of them are gone."""
        whole = self._samples.whole()
        if whole is None:
            return None
        data = replace(self._data, source=whole, cache=None)
        return lambda graph, scheme: self._measure(graph, scheme, data, None)

    def _measure(
        self, graph: gs.Graph, scheme: Scheme, data: CalibrationData, progress: Progress | None
    ) -> Calibration | None:
        """Return statistics, of both folds too, that are enough for all candidates."""
        means = self._asked.correct_biases is not False
        return calibrate_plan(
            self._plan_of(graph, scheme),
            data,
            progress=progress,
            halved=True,
            most=MOST_COUNTED,
            means=means,
        )


def _weights_of(graph: gs.Graph) -> WeightMemory:
    """Return a memory of the weights of a graph, which its copies share."""
    layers = (node for node in graph.nodes if is_dot_product(node))
    weights = (tensor for node in layers for tensor in node.inputs if isinstance(tensor, gs.Constant))
    return WeightMemory(tensor.values for tensor in weights if not is_weightless(tensor._values))
