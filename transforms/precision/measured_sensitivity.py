"""Measure the sensitivity of each layer: the error of the outputs with that layer alone quantized."""

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
"""Runs in all, at least one of each layer and format; they determine the number of samples.

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
    """Return the error of the outputs for each layer and choice of formats, with all other layers in float.

    The inputs, the weight and the bias of the layer have these formats; in a quantized model, errors of other
    layers would hide small ones. ``value`` is the ``metric``, one of METRICS or FILE.py:FUNCTION, against the
    float model; ``harm`` is the error against the layer in its baseline formats: what the move adds. One
    session of a model with switches serves all layers. Samples are evenly spaced, about ``RUNS`` runs in all;
    a user's function gets the outputs of all samples. Files for the workers are written to the folder of the
    ``log``, which keeps results. Results do not depend on the workers or their number.
    """
    labels = [choice.label for choice in choices]
    places: Sequence[int] = range(len(bench.feeds))
    if metric in METRICS:
        places = ranking_formats(len(bench.feeds), RUNS, len(candidates) * (len(labels) + 1))
    key = json.dumps([metric, labels, len(places)])
    candidate_of = {f"{key}/{candidate.name}": candidate for candidate in candidates}
    if any(log.get(task) is None for task in candidate_of):
        graph, switches = _switched(model, [candidate.name for candidate in candidates], choices)
        show(graph, bench.names)
        samples = [(bench.feeds[place], bench.expected[place]) for place in places]
        write_folder(log.folder, graph, switches, samples, bench.run, bench.view)
    place = metric if metric in METRICS else absolute_place(metric)  # workers have other working folders
    tasks = {task: SwitchTask(str(log.folder), number, place) for number, task in enumerate(candidate_of)}
    try:
        measured = log.run(measure, tasks, workers, progress)
    finally:
        forget()
    damages = (
        LayerSensitivity(candidate.name, candidate.op, label, value, harm)
        for candidate, values in zip(candidate_of.values(), measured, strict=True)
        for label, value, harm in zip(labels, values[::2], values[1::2], strict=True)
    )
    return Sensitivity(metric, len(places), tuple(damages))


def _switched(
    model: MixedModel, layers: Sequence[str], choices: Sequence[LayerRule]
) -> tuple[gs.Graph, list[list[str]]]:
    """Return the float model with switches, and each layer's switches: the baseline first, then choices."""
    base = model.in_float()
    mixes = {choice.label: dict.fromkeys(layers, choice) for choice in choices}
    quantized = {label: model.build(mix, finished=False) for label, mix in {PLAIN: {}, **mixes}.items()}
    switches = switched_model(base, quantized, [(name, label) for name in layers for label in quantized])
    return base.graph, [[switches[name, label] for label in quantized] for name in layers]
