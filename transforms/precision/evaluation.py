"""Where mixed models are measured: samples, what the float model makes of them, and results that are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.files import cleanup
from transforms.graph import walk
from transforms.graph.number_shapes import in_words, judged_tensors
from transforms.graph.output_view import ALL, OutputView, output_view
from transforms.model import provenance
from transforms.model.graph_proto import model_hash
from transforms.model_io import bytes_written
from transforms.precision.mixed import Mixed
from transforms.precision.mixed_model import MixedModel
from transforms.run.coded_caches import coded_caches, with_codes
from transforms.run.feeds import Feeds
from transforms.run.instrumented_model import open_showing
from transforms.run.task_log import TaskLog
from transforms.run.turns import Timer, time_graphs
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.mixing_rule import MixingRule
from transforms.search.output_metrics import METRICS, Outputs, OutputsPair, lost_top1
from transforms.search.target import EVALUATE, LOST_TOP1
from transforms.search.user_metric import load_metric, split_place


@dataclass(frozen=True)
class MixingOptions:
    """How the work is done.

    ``run``: how models run. ``workers``: where layers are measured. ``folder``: where results are kept, for
    another run on the same model, data and options to go on from; on disks that all workers share. ``labels``
    [n]: the right class of each row of the outputs. ``analyse_only``: nothing is moved. ``timer``: what
    measures seconds for strategy ``latency``. ``bytes_written``: those of the file that a model becomes, by
    its scheme; it may change the model.
    """

    run: RunOptions = field(default_factory=RunOptions)
    workers: Workers = field(default_factory=Workers)
    folder: Path | None = None
    labels: NDArray[np.integer] | None = None
    analyse_only: bool = False
    timer: Timer = time_graphs
    bytes_written: Callable[[Mixed, Scheme], int] = lambda mixed, _: bytes_written(mixed.graph)


@dataclass(frozen=True)
class EvaluationSet:
    """Where layers are measured: feeds, the outputs of the float model that count, and how models run.

    ``folder`` is where the work is written and ``workers`` do it; both may be on other machines that share
    the folder. ``log`` keeps what was measured. ``metric``: that of the target; ``evaluate``: the user's
    FILE.py:FUNCTION, if that is the metric; ``labels`` as in MixingOptions. ``notes``: lines on outputs that
    are not compared themselves. ``view``: how outputs are compared; a user's function gets them as they are.
    """

    feeds: Sequence[Mapping[str, np.ndarray]]
    expected: Sequence[Outputs]
    run: RunOptions
    folder: Path
    workers: Workers
    log: TaskLog
    metric: str = "sqnr"
    evaluate: str = ""
    labels: NDArray[np.integer] | None = None
    notes: Sequence[str] = ()
    view: OutputView = ALL

    def on(self, places: Sequence[int]) -> EvaluationSet:
        """Return the same with the samples at some places alone."""
        feeds, expected = ([part[place] for place in places] for part in (self.feeds, self.expected))
        return replace(self, feeds=feeds, expected=expected)

    def score(self, graph: gs.Graph) -> float:
        """Return the metric of any graph with the inputs and outputs of the float model."""
        names = list(self.expected[0])
        session = open_showing(graph, names, self.run)
        run = with_codes(lambda feed: session.run(feed, names), coded_caches(graph))
        made = map(run, self.feeds)
        if self.metric == EVALUATE:
            return load_metric(self.evaluate)(list(made))
        pairs: Iterator[OutputsPair] = zip(
            map(self.view.of, self.expected), map(self.view.of, made), strict=True
        )
        if self.metric == LOST_TOP1:
            return lost_top1(pairs, self.labels)
        return METRICS[self.metric].score(pairs)


@contextmanager
def open_evaluation(
    model: MixedModel, data: CalibrationData, rule: MixingRule, options: MixingOptions
) -> Iterator[EvaluationSet]:
    """Yield what measurements stand on; results go to the folder of the options, or are not kept."""
    assert isinstance(data.source, Feeds)
    feeds = [feed for _, feed in data.source][: rule.data_size or None]
    judged = _judged(model, rule)
    names = list(dict.fromkeys(chain(*judged.values()))) or list(judged)
    session = open_showing(model.graph, names, options.run)
    made = [session.run(feed, names) for feed in feeds]
    arrays = [name for name in names if isinstance(made[0][name], np.ndarray)]  # sequences have no metric
    expected: list[Outputs] = [{name: one[name] for name in arrays} for one in made]
    folder = options.folder and options.folder.resolve() / _key(model, data.source, rule, options)
    metric = rule.bound.metric if rule.bound else "sqnr"
    with cleanup.temporary_folder() if folder is None else nullcontext(folder) as place:
        place.mkdir(parents=True, exist_ok=True)
        log = TaskLog(place / "results.jsonl")
        options_of = options.run, place, options.workers, log, metric, rule.evaluate, options.labels
        yield EvaluationSet(feeds, expected, *options_of, in_words(judged), output_view(model.graph))


def _judged(model: MixedModel, rule: MixingRule) -> dict[str, list[str]]:
    """Return, by the outputs that count, the tensors that are compared: a user's function gets outputs."""
    names = _outputs(model.graph, rule.output_index)
    whole = {name: [name] for name in names}
    found = {} if rule.evaluate else judged_tensors(model.graph)
    if all(found.get(name, [name]) == [name] for name in names):
        return whole
    known = walk.tensors(model.build({}).graph)
    return {name: judged_tensors(model.graph, known)[name] for name in names}


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
        provenance.software(),
        model_hash(model.graph),
        data.hash(),
        model.scheme.to_toml(),
        repr((rule.data_size, rule.output_index, rule.evaluate, options.run.provider)),
        hashlib.sha256(labels).hexdigest(),
        hashlib.sha256(function).hexdigest(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
