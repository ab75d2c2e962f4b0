"""Sensitivities measured: one layer at a time in other formats, and what that does to the outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from transforms.judge.output_views import show
from transforms.judge.sample_roles import ranking_formats
from transforms.precision.candidates import Candidate
from transforms.precision.evaluation import EvaluationSet
from transforms.precision.mixed_model import MixedModel
from transforms.precision.sensitivity import LayerSensitivity, Sensitivity
from transforms.precision.switch_worker import SwitchTask, forget, measure, write_folder
from transforms.precision.switched_model import switched_model
from transforms.run.task_log import Progress
from transforms.scheme.layer_rule import LayerRule
from transforms.search.output_metrics import METRICS
from transforms.search.user_metric import absolute_place

RUNS = 256
"""Runs in all, or one of each layer and format: as many samples are taken as come to that.

These rank the layers of ResNet-8 and MobileNet as all 64 samples do, with Spearman's correlations of 0.86 to
0.96 from A16W8 to A8W8 and from BF16 to BFP16 and MX6, half as many with 0.55 to 0.89; the 48 layers of
MiniLM with 0.99 (``pytest -m heavy -s -k rank_layers``).
"""

PLAIN = ""
"""The label of the formats of the baseline."""


def measure_sensitivity(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    metric: str,
    bench: EvaluationSet,
    *,
    progress: Progress | None = None,
) -> Sensitivity:
    """Return what each of the formats does to the outputs of the float model where one layer alone has them.

    What that layer reads, its weight and its bias are in these formats, all else is float: roundings of other
    layers would hide small errors. ``value`` is the metric, one of METRICS or FILE.py:FUNCTION, against the
    float model, ``harm`` how far that is from the layer in its formats in the baseline: what the move adds.
    One session of a model in which layers can be switched serves them all. Samples are evenly taken, about
    ``RUNS`` in all; a function of the user's gets the outputs of all samples. The result does not depend on
    the workers, nor on how many there are.
    """
    labels = [choice.label for choice in choices]
    if metric in METRICS:
        models = len(candidates) * (len(labels) + 1)
        bench = bench.on(ranking_formats(len(bench.feeds), RUNS, models))
    said = json.dumps([metric, labels, len(bench.feeds)])
    names = {f"{said}/{one.name}": one for one in candidates}
    if any(bench.log.get(name) is None for name in names):
        base = model.in_float()
        every = {one.name: one for one in candidates}
        mixes = {choice.label: dict.fromkeys(every, choice) for choice in choices}
        others = {label: model.build(mix, finished=False) for label, mix in {PLAIN: {}, **mixes}.items()}
        found = switched_model(base, others, [(name, label) for name in every for label in others])
        switches = [[found[name, label] for label in others] for name in every]
        show(base.graph, list(bench.expected[0]))
        what = bench.feeds, bench.expected, bench.run, bench.view
        write_folder(bench.folder, base.graph, switches, *what)
    place = metric if metric in METRICS else absolute_place(metric)  # workers have other working folders
    tasks = {name: SwitchTask(str(bench.folder), number, place) for number, name in enumerate(names)}
    try:
        measured = bench.log.run(measure, tasks, bench.workers, progress)
    finally:
        forget()
    damages = (
        LayerSensitivity(one.name, one.op, label, value, harm)
        for one, values in zip(names.values(), measured, strict=True)
        for label, value, harm in zip(labels, values[::2], values[1::2], strict=True)
    )
    return Sensitivity(metric, len(bench.feeds), tuple(damages))
