"""Automatic mixed precision: which layers may have cheaper formats while the outputs keep to a target."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
from numpy.typing import NDArray

from transforms import calibration, graph_proto, run_tasks
from transforms.assign_precision import Assignment, Choices, Step, assign
from transforms.calibrate_plan import CalibrationData
from transforms.candidates import Candidate, find_candidates, measure_candidates
from transforms.choose_formats import Option, Size
from transforms.feeds import Feeds, model_inputs, open_feeds
from transforms.layer_rule import LayerRule
from transforms.layer_trace import trace_sensitivity
from transforms.light_session import open_light
from transforms.measured_sensitivity import Bench, measure_sensitivity
from transforms.mixed_model import Mix, MixedModel
from transforms.mixing_rule import MixingRule, make_mixing_rule
from transforms.model_hash import model_hash
from transforms.output_metrics import METRICS, Outputs, Pair, lost_top1
from transforms.quantize_graph import Quantized
from transforms.run_model import RunOptions
from transforms.scheme import Scheme
from transforms.sensitivity import Sensitivity
from transforms.target import EVALUATE, LOST_TOP1, Target
from transforms.task_log import TaskLog
from transforms.user_metric import load_metric, split_place

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MixingOptions:
    """How the work is done.

    ``run``: how models run. ``workers``: where layers are measured. ``folder``: where results are kept, for
    another run on the same model, data and options to go on from; on disks that all workers share. ``labels``
    [n]: the right class of each row of the outputs. ``analyse_only``: nothing is moved.
    """

    run: RunOptions = field(default_factory=RunOptions)
    workers: run_tasks.Workers = run_tasks.SerialExecutor
    folder: Path | None = None
    labels: NDArray[np.integer] | None = None
    analyse_only: bool = False


@dataclass(frozen=True)
class Watch:
    """What is told of the progress: samples that ranges are measured on, layers, models that are tried."""

    calibrating: calibration.Progress | None = None
    measuring: run_tasks.Progress | None = None
    step: Callable[[Step], None] | None = None


@dataclass
class MixedPrecision:
    """The model that was chosen, its scheme, which names the layers, and how it was found.

    ``choices``: the formats of layers that were moved, of ``count`` that could be; others have those of
    ``plain``. ``labels``: the formats that were looked at. ``metric``: that of the target. ``float_graph``:
    the float model as it was quantized. Without data there are no ``candidates`` and no ``sensitivity``;
    there is no ``assignment`` without data, and where nothing was to be moved (``is_analysis``).
    """

    graph: gs.Graph
    done: Quantized
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

    @property
    def is_analysis(self) -> bool:
        """Whether sensitivities were all that was asked for."""
        return self.sensitivity is not None and self.assignment is None


def mix_precision(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    options: MixingOptions | None = None,
    watch: Watch | None = None,
) -> MixedPrecision:
    """Quantize a float model by a scheme, and move layers to the formats of its ``auto_mixed_precision``.

    Ranges are measured once for all formats that may appear. Sensitivities say in which order layers are
    tried; each model is judged by its true outputs, and the result keeps to the target. The graph is prepared
    in place. Raises TargetError where the model breaks the target before anything is moved,
    MissingDataError or ValueError without data that are needed, and ValueError as
    :func:`transforms.quantize_graph.quantize_graph` does.
    """
    options, watch = options or MixingOptions(), watch or Watch()
    rule = make_mixing_rule(scheme.auto_mixed_precision)
    if rule is None:
        raise ValueError("the scheme says nothing of auto_mixed_precision")
    model = MixedModel(graph, scheme)
    nodes = find_candidates(model, rule.target_op_types, rule.include_nodes, rule.exclude_nodes)
    choices = rule.choices(scheme.activation, scheme.weight)
    everywhere: list[Mix] = [dict.fromkeys(nodes, choice) for choice in choices]
    data = None if data is None else _repeatable(data, graph)
    model.measure(data, [{}, *everywhere], progress=watch.calibrating)
    if data is None:
        return _move_all(model, nodes, choices, rule)
    with _bench(model, data, rule, options) as bench:
        candidates = measure_candidates(nodes, graph, bench.feeds[0], bench.run)
        mixing = _Mixing(model, candidates, choices, rule, bench, options)
        return mixing.run(watch)


class _Mixing:
    """One model on its way to an assignment."""

    def __init__(
        self,
        model: MixedModel,
        candidates: list[Candidate],
        choices: Sequence[LayerRule],
        rule: MixingRule,
        bench: Bench,
        options: MixingOptions,
    ) -> None:
        self._model, self._candidates, self._choices = model, candidates, choices
        self._rule, self._bench, self._options = rule, bench, options
        self._labels = {choice.label: choice for choice in choices}
        self._metric = rule.bound.metric if rule.bound else "sqnr"

    def run(self, watch: Watch) -> MixedPrecision:
        """Measure, assign and build."""
        target = self._target()
        sensitivity = self._sensitivity(watch)
        found: Assignment | None = None
        if not self._options.analyse_only:
            found = assign(
                self._sizes_of_options(sensitivity),
                self._sizes(),
                self._evaluate,
                target,
                self._rule.strategy,
                budget=self._budget(),
                progress=watch.step,
            )
        chosen = {name: self._labels[label] for name, label in (found.choices if found else {}).items()}
        result = _built(self._model, chosen, len(self._candidates), self._choices, self._metric)
        return replace(
            result,
            samples=len(self._bench.feeds),
            candidates=self._candidates,
            sensitivity=sensitivity,
            assignment=found,
        )

    def _target(self) -> Target | None:
        """Return the target; that of a user's function is relative to what it says of the float model."""
        target = self._rule.bound
        if target is None or target.metric != EVALUATE:
            return target
        return target.at(load_metric(self._rule.evaluate)(self._bench.expected))

    def _sensitivity(self, watch: Watch) -> Sensitivity:
        if self._rule.sensitivity == "trace":
            return trace_sensitivity(
                self._model, self._candidates, self._choices, self._bench, progress=watch.measuring
            )
        metric = self._rule.measured_by
        place = self._rule.evaluate if metric == EVALUATE else metric
        return measure_sensitivity(
            self._model, self._candidates, self._choices, place, self._bench, progress=watch.measuring
        )

    def _sizes(self) -> dict[str, Size]:
        plain = _plain(self._model.scheme)
        return {one.name: one.size(plain, self._model.scheme) for one in self._candidates}

    def _sizes_of_options(self, sensitivity: Sensitivity) -> list[Option]:
        by_name = {one.name: one for one in self._candidates}
        return [
            Option(
                damage.layer,
                damage.label,
                damage.harm,
                by_name[damage.layer].size(self._labels[damage.label], self._model.scheme),
            )
            for damage in sensitivity.damages
        ]

    def _budget(self) -> float | None:
        if self._rule.bits_target is not None:
            return self._rule.bits_target * sum(one.weights for one in self._candidates)
        return None if self._rule.bytes_target is None else 8.0 * self._rule.bytes_target

    def _evaluate(self, choices: Choices) -> float:
        """Return the metric of the target for the model with these formats."""
        said = "\n".join(f"{layer}\0{label}" for layer, label in sorted(choices.items()))
        name = f"mix {self._metric} {hashlib.sha256(said.encode()).hexdigest()}"
        known = self._bench.log.get(name)
        if known is None:
            known = self._score({layer: self._labels[label] for layer, label in choices.items()})
            self._bench.log.put(name, known)
        return known

    def _score(self, mix: Mix) -> float:
        graph = self._model.build(mix).graph
        session = open_light(*graph_proto.export_light(graph), self._bench.run)
        names = list(self._bench.expected[0])
        made = (session.run(feed, names) for feed in self._bench.feeds)
        pairs: Iterator[Pair] = zip(self._bench.expected, made, strict=True)
        if self._metric == LOST_TOP1:
            return lost_top1(pairs, self._options.labels)
        if self._metric == EVALUATE:
            return load_metric(self._rule.evaluate)([found for _, found in pairs])
        return METRICS[self._metric].score(pairs)


def _repeatable(data: CalibrationData, graph: gs.Graph) -> CalibrationData:
    """Return data that can be taken several times."""
    feeds = data.source
    if not isinstance(feeds, Feeds):
        feeds = open_feeds(feeds, model_inputs(graph), images=data.images, limit=data.limit)
    if not feeds.is_repeatable:
        kept = [feed for _, feed in feeds]
        feeds = open_feeds(kept, model_inputs(graph))
    return CalibrationData(feeds, cache=data.cache, run=data.run)


def _move_all(
    model: MixedModel, nodes: Mapping[str, list[gs.Node]], choices: Sequence[LayerRule], rule: MixingRule
) -> MixedPrecision:
    """Return the model with every candidate moved, where there is no target to keep to and no data."""
    if rule.bound is not None or len(choices) > 1 or rule.strategy != "speed":
        raise ValueError("automatic mixed precision measures errors, and there are no data to do it on")
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


@contextmanager
def _bench(
    model: MixedModel, data: CalibrationData, rule: MixingRule, options: MixingOptions
) -> Iterator[Bench]:
    """Yield what measurements stand on; results go to the folder of the options, or are not kept."""
    assert isinstance(data.source, Feeds)
    feeds = [feed for _, feed in data.source][: rule.data_size or None]
    names = _outputs(model.graph, rule.output_index)
    session = open_light(*graph_proto.export_light(model.graph), options.run)
    expected: list[Outputs] = [session.run(feed, names) for feed in feeds]
    if options.folder is None:
        with tempfile.TemporaryDirectory(prefix="onnx-narrow-") as folder:
            yield _make(Path(folder), feeds, expected, options)
    else:
        folder_of_this = options.folder / _key(model, data.source, rule, options)
        folder_of_this.mkdir(parents=True, exist_ok=True)
        yield _make(folder_of_this, feeds, expected, options)


def _make(folder: Path, feeds: Sequence[Feed], expected: Sequence[Outputs], options: MixingOptions) -> Bench:
    log = TaskLog(folder / "results.jsonl")
    return Bench(feeds, expected, options.run, folder, options.workers, log)


def _outputs(graph: gs.Graph, index: int) -> list[str]:
    """Return the names of the outputs that count; ValueError for an output that is not there."""
    names = [str(tensor.name) for tensor in graph.outputs]
    if index >= len(names):
        raise ValueError(f"output {index} is not there, the model has {len(names)}, the first is 0")
    return names if index < 0 else [names[index]]


def _key(model: MixedModel, data: Feeds, rule: MixingRule, options: MixingOptions) -> str:
    """Return a name for everything that results depend on."""
    labels = b"" if options.labels is None else options.labels.tobytes()
    function = Path(split_place(rule.evaluate)[0]).read_bytes() if rule.evaluate else b""
    parts = [
        model_hash(model.graph),
        data.hash(),
        model.scheme.to_toml(),
        repr((rule.data_size, rule.output_index, rule.evaluate, options.run.provider, ort.__version__)),
        hashlib.sha256(labels).hexdigest(),
        hashlib.sha256(function).hexdigest(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
