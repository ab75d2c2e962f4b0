"""Sensitivities measured: one layer at a time in other formats, and what that does to the outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx_graphsurgeon as gs

from transforms.judge.output_views import show
from transforms.judge.sample_roles import ranking_formats
from transforms.precision.bench import Bench
from transforms.precision.candidates import Candidate
from transforms.precision.mixed_model import MixedModel
from transforms.precision.sensitivity import LayerSensitivity, Sensitivity
from transforms.precision.switch_worker import SwitchTask, forget, measure, write_folder
from transforms.precision.switched_model import switched_model
from transforms.run.task_log import Progress, TaskLog
from transforms.run.workers import Workers
from transforms.scheme.layer_rule import LayerRule
from transforms.search.output_metrics import METRICS
from transforms.search.user_metric import absolute_place

RUNS = 256
"""Runs in all, or one of each layer and format: as many samples are taken as come to that.

These rank the layers of ResNet-8 and MobileNet as all 64 samples do, with Spearman's correlations of 0.86 to
0.93 from A16W8 to A8W8 and from BF16 to BFP16 and MX6, but for ResNet-8 in A8W8: 0.49, since one of 12
samples holds most of a layer's error (``pytest -m heavy -s -k rank_layers``).
"""

PLAIN = ""
"""The label of the formats of the baseline."""


def measure_sensitivity(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    metric: str,
    bench: Bench,
    log: TaskLog,
    workers: Workers,
    *,
    progress: Progress | None = None,
) -> Sensitivity:
    """Return what each of the formats does to the outputs of the float model where one layer alone has them.

    What that layer reads, its weight and its bias are in these formats, all else is float: roundings of other
    layers would hide small errors. ``value`` is the metric, one of METRICS or FILE.py:FUNCTION, against the
    float model, ``harm`` how far that is from the layer in its formats in the baseline: what the move adds.
    One session of a model in which layers can be switched serves them all. Samples are evenly taken, about
    ``RUNS`` in all; a function of the user's gets the outputs of all samples. Work is written beside the
    ``log``, which keeps results. They do not depend on the workers, nor on how many there are.
    """
    labels = [choice.label for choice in choices]
    places: Sequence[int] = range(len(bench.feeds))
    if metric in METRICS:
        places = ranking_formats(len(bench.feeds), RUNS, len(candidates) * (len(labels) + 1))
    said = json.dumps([metric, labels, len(places)])
    names = {f"{said}/{one.name}": one for one in candidates}
    if any(log.get(name) is None for name in names):
        graph, switches = _switched(model, [one.name for one in candidates], choices)
        show(graph, bench.names)
        samples = [(bench.feeds[place], bench.expected[place]) for place in places]
        write_folder(log.folder, graph, switches, samples, bench.run, bench.view)
    place = metric if metric in METRICS else absolute_place(metric)  # workers have other working folders
    tasks = {name: SwitchTask(str(log.folder), number, place) for number, name in enumerate(names)}
    try:
        measured = log.run(measure, tasks, workers, progress)
    finally:
        forget()
    damages = (
        LayerSensitivity(one.name, one.op, label, value, harm)
        for one, values in zip(names.values(), measured, strict=True)
        for label, value, harm in zip(labels, values[::2], values[1::2], strict=True)
    )
    return Sensitivity(metric, len(places), tuple(damages))


def _switched(
    model: MixedModel, layers: Sequence[str], choices: Sequence[LayerRule]
) -> tuple[gs.Graph, list[list[str]]]:
    """Return the float model with switches, of each layer one for the baseline and one for each choice."""
    base = model.in_float()
    mixes = {choice.label: dict.fromkeys(layers, choice) for choice in choices}
    others = {label: model.build(mix, finished=False) for label, mix in {PLAIN: {}, **mixes}.items()}
    found = switched_model(base, others, [(name, label) for name in layers for label in others])
    return base.graph, [[found[name, label] for label in others] for name in layers]
