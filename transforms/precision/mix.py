"""Automatic mixed precision: move layers to cheaper formats while the outputs meet a target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import onnx_graphsurgeon as gs

from transforms.calibrate import calibrate
from transforms.calibrate.calibration_data import CalibrationData, MissingDataError
from transforms.conversion.record import Record
from transforms.conversion.standard_form import note_mended
from transforms.graph import walk
from transforms.precision.assign import Assignment, Choices, Option, Size, Step, assign
from transforms.precision.bench import Bench, mixing_bench
from transforms.precision.candidates import (
    Candidate,
    find_candidates,
    measure_candidates,
    require_savings,
    with_savings,
    without_uneven,
)
from transforms.precision.file_budget import bits_of_budget
from transforms.precision.measured_sensitivity import measure_sensitivity
from transforms.precision.mixed_model import Mix, MixedModel
from transforms.precision.mixing_options import MixingOptions, open_results
from transforms.precision.sensitivity import Sensitivity
from transforms.run import task_log
from transforms.run.feeds import Feeds
from transforms.run.mend_shapes import mend_shapes
from transforms.run.task_log import TaskLog
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.target import EVALUATE, Target


@dataclass(frozen=True)
class ProgressHooks:
    """Callbacks for progress: of calibration samples, of measured layers, and of models that are tried."""

    calibrating: calibrate.Progress | None = None
    measuring: task_log.Progress | None = None
    step: Callable[[Step], None] | None = None


@dataclass
class MixedPrecision:
    """The chosen model, its scheme, which names the moved layers, and the measurements.

    ``choices``: the formats of moved layers, out of ``count`` candidates; others have those of ``plain``.
    ``labels``: the formats that were tried. ``metric``: that of the target. ``float_graph``: the float model
    in the form that was quantized. Without data there are no ``candidates`` and no ``sensitivity``; without
    data and for an analysis alone (``is_analysis``) there is no ``assignment``. ``bench``: measures the same
    metric of other graphs, such as a tuned one. ``notes``: on outputs and layers whose number of rows depends
    on values.
    """

    graph: gs.Graph
    done: Record
    scheme: Scheme
    float_graph: gs.Graph
    choices: dict[str, LayerRule]
    count: int
    plain: LayerRule
    labels: list[str]
    metric: str
    samples: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    sensitivity: Sensitivity | None = None
    assignment: Assignment | None = None
    bench: Bench | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def is_analysis(self) -> bool:
        """Whether sensitivities were all that was asked for."""
        return self.sensitivity is not None and self.assignment is None


def mix_precision(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    options: MixingOptions | None = None,
    watch: ProgressHooks | None = None,
) -> MixedPrecision:
    """Quantize a float model by a scheme, and move layers to the formats of its ``auto_mixed_precision``.

    Ranges are measured once for all formats that may appear. Layers are tried in the order of their
    sensitivities; each model is judged by its outputs, and the result meets the target. The graph is prepared
    in place. Raises TargetError if the model breaks the target before anything is moved, MissingDataError or
    ValueError if data are needed and missing, and ValueError as
    :func:`transforms.pipelines.quantize_graph.quantize_graph` does.
    """
    options, watch = options or MixingOptions(), watch or ProgressHooks()
    rule = scheme.auto_mixed_precision
    if rule is None:
        raise ValueError("the scheme says nothing of auto_mixed_precision")
    if scheme.fit_weights is True:
        alone = "mixed precision fits weights of few bits for a budget without a target"
        raise ValueError(f"fit_weights is true, and {alone}: false or 'auto' are legal")
    model = MixedModel(graph, scheme)
    nodes = find_candidates(model, rule.target_op_types, rule.exclude_nodes)
    nodes, uneven = (nodes, []) if data is None else without_uneven(nodes, graph)
    # only formats that save bits, and layers that they change
    choices = rule.choices(scheme.activation, scheme.weight)
    require_savings(choices, scheme, budget=rule.has_budget)
    nodes = with_savings(nodes, choices, scheme)
    everywhere: list[Mix] = [dict.fromkeys(nodes, choice) for choice in choices]
    # shapes of the samples, then one pass over the data for the ranges of all formats
    data = data and data.repeatable(graph)
    if data is not None:
        mend_shapes(graph, (feed for _, feed in data.feeds(graph)), options.run)
        note_mended(graph, model.prepared.notes)
    model.measure(data, [{}, *everywhere], progress=watch.calibrating)
    if data is None:
        return _move_all(model, nodes, choices, rule)
    assert isinstance(data.source, Feeds), "they can be read again"
    feeds = [feed for _, feed in data.source]

    def _known() -> Set[str]:
        return walk.tensors(model.build({}).graph).keys()

    # results of an interrupted job with the same inputs are taken from the log
    bench = mixing_bench(graph, feeds, rule, options.run, options.labels, _known)
    with open_results(model, data.source, rule, options) as (log, begun_anew):
        candidates = measure_candidates(nodes, graph, feeds[0], bench.run)
        mixing = _Mixing(model, candidates, choices, rule, bench, log, options)
        return replace(mixing.run(watch), notes=[*bench.notes, *uneven, *begun_anew])


@dataclass(frozen=True)
class _Mixing:
    """Measures sensitivities of one model and assigns formats to its layers."""

    model: MixedModel
    candidates: list[Candidate]
    choices: Sequence[LayerRule]
    rule: MixingRule
    bench: Bench
    log: TaskLog
    options: MixingOptions

    @property
    def labels(self) -> dict[str, LayerRule]:
        """The rules of the formats to choose from, by their labels."""
        return {choice.label: choice for choice in self.choices}

    def run(self, watch: ProgressHooks) -> MixedPrecision:
        """Measure, assign and build."""
        target = self._target()
        if target and not self.options.analyse_only:
            target = target.checked(self._evaluate({}))  # before anything that takes long
        sensitivity = self._sensitivity(watch)
        assignment: Assignment | None = None
        if not self.options.analyse_only:
            assignment = self._assign(sensitivity, target, watch)
        chosen = {
            name: self.labels[label] for name, label in (assignment.choices if assignment else {}).items()
        }
        result = _built(self.model, chosen, len(self.candidates), self.choices, self.bench.metric)
        return replace(
            result,
            samples=len(self.bench.feeds),
            candidates=self.candidates,
            sensitivity=sensitivity,
            assignment=assignment,
            bench=self.bench,
        )

    def _assign(self, sensitivity: Sensitivity, target: Target | None, watch: ProgressHooks) -> Assignment:
        options, sizes = self._sizes_of_options(sensitivity), self._sizes()
        weights = sum(candidate.weights for candidate in self.candidates)
        budget = bits_of_budget(self.rule, options, sizes, weights, self._bytes_written)
        return assign(options, sizes, self._evaluate, target, budget=budget, progress=watch.step)

    def _graph(self, choices: Choices) -> gs.Graph:
        return self.model.build({layer: self.labels[label] for layer, label in choices.items()}).graph

    def _target(self) -> Target | None:
        """Return the target; a relative one of a user's function refers to its value of the float model."""
        target = self.rule.bound
        if target is None or target.metric != EVALUATE:
            return target
        return target.at(self.bench.float_score())

    def _sensitivity(self, watch: ProgressHooks) -> Sensitivity:
        metric = self.rule.measured_by
        place = self.rule.evaluate if metric == EVALUATE else metric
        return measure_sensitivity(
            *(self.model, self.candidates, self.choices, place, self.bench),
            *(self.log, self.options.workers),
            progress=watch.measuring,
        )

    def _sizes(self) -> dict[str, Size]:
        plain = _plain(self.model.scheme)
        return {candidate.name: candidate.size(plain, self.model.scheme) for candidate in self.candidates}

    def _sizes_of_options(self, sensitivity: Sensitivity) -> list[Option]:
        by_name = {candidate.name: candidate for candidate in self.candidates}
        return [
            Option(
                damage.layer,
                damage.label,
                damage.harm,
                by_name[damage.layer].size(self.labels[damage.label], self.model.scheme),
            )
            for damage in sensitivity.damages
        ]

    def _bytes_written(self, choices: Choices) -> int:
        formats = {layer: self.labels[label] for layer, label in choices.items()}
        return self.options.bytes_written(self.model.build(formats), self.model.scheme_of(formats))

    def _evaluate(self, choices: Choices) -> float:
        """Return the metric of the target for the model with these formats."""
        formats = "\n".join(f"{layer}\0{label}" for layer, label in sorted(choices.items()))
        name = f"mix {self.bench.metric} {hashlib.sha256(formats.encode()).hexdigest()}"
        values = self.log.get(name)
        if values is None:
            values = (self.bench.score(self._graph(choices)),)
            self.log.put(name, values)
        return values[0]


def _move_all(
    model: MixedModel, nodes: Mapping[str, list[gs.Node]], choices: Sequence[LayerRule], rule: MixingRule
) -> MixedPrecision:
    """Return the model with every candidate moved, for a rule without a target and a job without data."""
    if rule.bound is not None or len(choices) > 1 or rule.has_budget:
        raise MissingDataError("automatic mixed precision measures errors, and there are no data to do it on")
    return _built(model, dict.fromkeys(nodes, choices[0]), len(nodes), choices, "sqnr")


def _built(
    model: MixedModel, chosen: dict[str, LayerRule], count: int, choices: Sequence[LayerRule], metric: str
) -> MixedPrecision:
    mixed = model.build(chosen)
    return MixedPrecision(
        mixed.graph,
        mixed.done,
        model.scheme_of(chosen),
        model.graph,
        chosen,
        count,
        _plain(model.scheme),
        [choice.label for choice in choices],
        metric,
    )


def _plain(scheme: Scheme) -> LayerRule:
    return LayerRule(scheme.activation, scheme.weight)
