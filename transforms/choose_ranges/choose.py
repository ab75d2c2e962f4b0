"""Choosing what a scheme leaves to the outputs of the model: ranges, granularity and biases of integers.

Settings are compared as whole models on samples that gave them no ranges: the statistics of every second
sample serve the samples between. One key after the other is tried on top of the best setting so far, from
what the scheme's rules give (:meth:`transforms.scheme.Scheme.by_rule`), and a step is taken if a gain is to
be expected: what the samples show, weighed by its standard error with what such a step does to other models.
So few samples leave what is good for most models, and clear ones change it. The steps together are taken
back if they lose more than chance on these samples. One sample decides nothing.

A :class:`transforms.choose_ranges.candidate.Candidate` is any other change of the scheme, or a rewrite of the
float graph: a rewritten copy is measured anew, with the best setting so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.calibrate.calibration import Calibration, options_of
from transforms.calibrate.extrapolated_range import FEWEST
from transforms.calibrate.sample_statistics import Progress
from transforms.choose_ranges.bench import Bench
from transforms.choose_ranges.candidate import Candidate
from transforms.judge.first_samples import FirstSamples
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.float_tensors import FloatTensors, float_tensors, runs_to_search
from transforms.choose_ranges.means import Means, affordable
from transforms.choose_ranges.parameters import PlanOf
from transforms.choose_ranges.proposed_form import (
    Propose,
    Variant,
    propose_early,
    propose_of,
    rewritten,
    shown_beside,
)
from transforms.choose_ranges.search import Search
from transforms.choose_ranges.setting import Setting, setting_of
from transforms.choose_ranges.steps import Step, settings_of, steps
from transforms.choose_ranges.work import (
    MOST_COUNTED,
    runs_to_open,
    runs_to_prepare,
    samples_beside_biases,
    samples_for,
    spare_beside_biases,
    too_large,
)
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.weight_cache import WeightMemory
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32

MOST_SAMPLES = 32
"""Samples that settings are compared on: the first ones; ranges come from all."""

_FEWEST = 2


@dataclass(frozen=True)
class Chosen:
    """The scheme with nothing left open, its ranges, and a line that says why.

    ``candidate``: what is to be done to the graph first. ``floats``: runs of the float model on the first
    samples. ``spare``: runs of the quantized model that there is time for besides. ``kept``: the tensors that
    the scheme leaves in float for the outputs. Without a calibration the scheme is that of the rules.
    """

    scheme: Scheme
    calibration: Calibration | None = None
    note: str = ""
    candidate: Candidate | None = None
    floats: FloatRuns | None = None
    spare: int = 0
    kept: FloatTensors | None = None

    def keeping(self, kept: FloatTensors | None) -> Chosen:
        """Return it with more tensors in float."""
        if kept is None:
            return self
        tensors = {**self.scheme.tensors, **dict.fromkeys(kept.names, FLOAT32)}
        return replace(self, scheme=self.scheme.with_(tensors=tensors), kept=kept)


def choose_settings(
    graph: gs.Graph,
    scheme: Scheme,
    plan_of: PlanOf,
    data: CalibrationData,
    *,
    candidates: Sequence[Candidate] = (),
    propose: Propose | None = None,
    progress: Progress | None = None,
    memory: WeightMemory | None = None,
    searched: int = 0,
    known: FloatRuns | None = None,
) -> Chosen:
    """Measure a prepared graph and return the best setting of a scheme for it; the graph is not changed.

    ``plan_of`` makes the plan of a scheme for the graph, or for a copy of it. What the scheme says is kept;
    what it leaves ``auto`` is chosen. ``propose`` makes a candidate that goes first. ``memory``: of its
    weights. ``searched``: models that were run to find outliers, for a part of the time. ``known``: runs of
    the float model on some samples, maybe before outliers were moved. Raises as
    :func:`transforms.calibrate.calibrate_plan.calibrate_plan` does.
    """
    ruled = scheme.by_rule()
    if too_large(graph) or data.memory_limit is not None:
        return Chosen(
            ruled, note="Ranges by rule: the model is too large to compare settings, or memory is limited"
        )
    samples = FirstSamples(data.feeds(graph), graph, MOST_SAMPLES)
    plan_of, first = _remembering(plan_of), replace(data, source=samples.feeds)
    proposed = propose_early(graph, samples, data, propose, _FEWEST, known)
    found = _calibrate(graph, scheme, plan_of, first, progress, beside=proposed.variants if proposed else ())
    calibration = found and _calibrate(graph, scheme, plan_of, first, None, found)
    if found is None or calibration is None:
        return Chosen(ruled)
    by_rule = Chosen(ruled, calibration.with_(options_of(ruled)))
    feeds = proposed.floats.feeds if proposed else samples.again()
    if len(feeds) < _FEWEST:
        return replace(by_rule, note="Ranges by rule: 1 sample is too few to choose by")
    whole = samples.whole()
    again = replace(data, source=data.source if whole is None else whole)
    variants = rewritten(graph, candidates) if whole is not None else []
    proposed = proposed or propose_of(graph, feeds, data.run, None if whole is None else propose, known)
    floats, extra = proposed.floats, len(proposed.variants)
    means = affordable(
        scheme, graph, calibration, samples.count, len(variants), proposed=extra > 0, searched=searched
    )
    if means is None:
        return replace(by_rule, note="Ranges by rule: comparing settings of so many nodes takes too long")
    if not floats.outputs:
        return replace(by_rule, note="Ranges by rule: no output is of a floating type")
    bench = Bench(graph, ruled, plan_of, calibration, floats, data.run, memory or WeightMemory())
    form, start = _Form(graph, scheme, calibration, bench), setting_of(ruled)
    most = settings_of(start, form.steps(means)) + means.variants + extra
    opened = runs_to_open(graph, calibration, samples.count)
    count = samples_for(means.runs, means.least(scheme), len(feeds))
    count = samples_beside_biases(means.runs, opened, most, samples_for(means.runs, most, count))
    bench.compare_on(count)
    search = Search(bench, start)
    form = _take(proposed.variants, form, search, plan_of, count, again, known=found)
    for step in form.steps(means):
        search.take(step)
    search.confirm()
    if form.candidate is None:
        form = _take(variants[: means.variants], form, search, plan_of, count, again)
    best = _resolved(form.scheme.by_rule(), search.best, form.bench)
    measured = form.calibration.with_(options_of(best))
    spare = max(means.runs - most * count - opened, 0)
    chosen = Chosen(best, measured, search.line(count), form.candidate, form.bench.floats, spare)
    if not scheme.keep_float or scheme.target:
        return chosen
    left = spare_beside_biases(spare) - runs_to_prepare(graph, calibration, samples.count)
    runs = runs_to_search(search.decibels, left)
    kept = form.float_tensors(search.near, count, runs, plan_of, data.run) if runs else None
    return chosen.keeping(kept)


@dataclass(frozen=True)
class _Form:
    """A graph, or a rewritten copy of it, its scheme, its statistics and what measures settings of it."""

    graph: gs.Graph
    scheme: Scheme
    calibration: Calibration
    bench: Bench
    candidate: Candidate | None = None

    def steps(self, means: Means) -> list[Step]:
        """Return the steps that there are means for."""
        if not means.steps:
            return []
        ends = _ends(self.graph, self.bench, self.calibration) if means.rooms else []
        samples = self.calibration.samples
        judged = means.rooms and samples >= 2 * FEWEST  # half of them tell how the ends of others scatter
        beyond = self.bench.reaching_beyond() if judged else []
        tried = steps(
            self.scheme, ends, means.methods, beyond=beyond, samples=samples, together=means.together
        )
        return list(tried)

    def float_tensors(
        self, best: Setting, count: int, runs: int, plan_of: PlanOf, run: RunOptions | None
    ) -> FloatTensors | None:
        """Return what stays float with a setting, by so many samples and in so many runs; None if nothing."""
        ruled, floats, memory = self.scheme.by_rule(), self.bench.floats, self.bench.memory
        bench = Bench(self.graph, ruled, plan_of, self.calibration, floats, run, memory, switches=True)
        bench.compare_on(count)
        return float_tensors(bench, best, runs)


def _take(
    variants: Sequence[Variant],
    form: _Form,
    search: Search,
    plan_of: PlanOf,
    count: int,
    data: CalibrationData,
    known: Calibration | None = None,
) -> _Form:
    """Return the last of the rewritten forms whose outputs are better than before, the given one if none is.

    ``count``: samples. ``known``: statistics of tensors that keep their names and hold the same numbers, not
    measured again; so do the outputs then.
    """
    for candidate, copy in variants:
        scheme = form.scheme.with_(**candidate.changes)
        calibration = _calibrate(copy, scheme, plan_of, data, None, known)
        if calibration is None:
            continue
        floats = form.bench.floats
        if known is None or not floats.is_of(copy):
            floats = FloatRuns(copy, floats.feeds, data.run)
        bench = Bench(copy, scheme.by_rule(), plan_of, calibration, floats, data.run, form.bench.memory)
        bench.compare_on(count)
        if search.consider(candidate, bench):
            form = _Form(copy, scheme, calibration, bench, candidate)
    return form


def _ends(graph: gs.Graph, bench: Bench, calibration: Calibration) -> list[list[str]]:
    """Return the groups of tensors that hold outputs, and these with those that hold inputs.

    Without those that have the same range in both halves of the samples, as pixels and probabilities do.
    """
    ends = bench.floats.outputs, [str(tensor.name) for tensor in graph.inputs]
    last, first = (
        [group for group in bench.groups_of(names) if calibration.halves_differ(bench.members(group))]
        for names in ends
    )
    rooms = [last, [*last, *first]] if first else [last]
    return [one for one in rooms if one]


def _calibrate(
    graph: gs.Graph,
    scheme: Scheme,
    plan_of: PlanOf,
    data: CalibrationData,
    progress: Progress | None,
    known: Calibration | None = None,
    beside: Sequence[Variant] = (),
) -> Calibration | None:
    """Return statistics, of halves of the samples too, that are enough for all settings of a scheme.

    ``beside``: rewritten copies of the graph whose tensors are measured in the same pass.
    """
    graphs = [(graph, scheme), *((copy, scheme.with_(**one.changes)) for one, copy in beside)]
    return calibrate_plan(
        [plan_of(variant, changed.by_rule()) for variant, changed in graphs],
        data,
        progress=progress,
        halved=True,
        most=MOST_COUNTED,
        known=known,
        means=scheme.correct_biases is not False,
        graph=shown_beside(graph, beside),
    )


def _resolved(ruled: Scheme, best: Setting, bench: Bench) -> Scheme:
    """Return the scheme that says what a setting does."""
    tensors = {name: method for group, method in best.methods.items() for name in bench.members(group)}
    return ruled.with_(
        calibrate_method=best.method,
        correct_biases=best.corrected,
        calibrate_tensors={**tensors, **ruled.calibrate_tensors},
        **best.kind.changes,
    )


def _remembering(plan_of: PlanOf) -> PlanOf:
    """Return what makes each plan of a graph once; the plans keep the graphs, so that no id is another's."""
    known: dict[tuple[int, str], QuantizationPlan] = {}

    def _of(graph: gs.Graph, scheme: Scheme) -> QuantizationPlan:
        key = id(graph), scheme.to_toml()
        if key not in known:
            known[key] = plan_of(graph, scheme)
        return known[key]

    return _of
