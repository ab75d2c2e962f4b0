"""Sensitivities measured: one layer at a time in other formats, and what that does to the outputs."""

from __future__ import annotations

from collections.abc import Sequence

from transforms.judge.output_views import show
from transforms.mix_precision.candidates import Candidate
from transforms.mix_precision.evaluation import EvaluationSet
from transforms.mix_precision.mixed_model import MixedModel
from transforms.mix_precision.sensitivity import LayerSensitivity, Sensitivity
from transforms.mix_precision.switch_worker import SwitchTask, forget, measure, write_folder
from transforms.mix_precision.switchable_model import switched_model
from transforms.run.task_log import Progress
from transforms.scheme.layer_rule import LayerRule
from transforms.search.output_metrics import METRICS
from transforms.search.user_metric import absolute_place


def measure_sensitivity(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    metric: str,
    bench: EvaluationSet,
    *,
    progress: Progress | None = None,
) -> Sensitivity:
    """Return what each of the formats does to the outputs of a model where one layer alone has them.

    What that layer reads, its weight and its bias are in the other formats, all else is as in the baseline,
    and all of it is computed in float32, as the nodes say. ``value`` is the metric, one of METRICS or
    FILE.py:FUNCTION, against the float model, ``harm`` what the move alone does, against the baseline: errors
    that are there before would hide small ones. One session of a model in which layers can be switched serves
    them all. The result does not depend on the workers, nor on how many there are.
    """
    wanted = [(one.name, choice.label) for one in candidates for choice in choices]
    names = {f"{metric}/{layer}/{label}": number for number, (layer, label) in enumerate(wanted)}
    if any(bench.log.get(name) is None for name in names):
        base = model.build({}, finished=False)
        mixes = {choice.label: {one.name: choice for one in candidates} for choice in choices}
        others = {label: model.build(mix, finished=False) for label, mix in mixes.items()}
        switches = switched_model(base, others, wanted)
        inputs = [switches[one] for one in wanted]
        show(base.graph, list(bench.expected[0]))
        write_folder(bench.folder, base.graph, inputs, bench.feeds, bench.expected, bench.run)
    place = metric if metric in METRICS else absolute_place(metric)  # workers have other working folders
    tasks = {name: SwitchTask(str(bench.folder), number, place) for name, number in names.items()}
    try:
        found = bench.log.run(measure, tasks, bench.workers, progress)
    finally:
        forget()
    op = {one.name: one.op for one in candidates}
    damages = (
        LayerSensitivity(layer, op[layer], label, *numbers)
        for (layer, label), numbers in zip(wanted, found, strict=True)
    )
    return Sensitivity("measured", metric, len(bench.feeds), tuple(damages))
