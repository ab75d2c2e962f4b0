"""Sensitivities measured: one layer at a time in other formats, and what that does to the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transforms.candidates import Candidate
from transforms.layer_rule import LayerRule
from transforms.mixed_model import MixedModel
from transforms.output_metrics import METRICS, Outputs
from transforms.run_model import RunOptions
from transforms.run_tasks import Progress, Workers, run_tasks
from transforms.sensitivity import Damage, Sensitivity
from transforms.switch_task import SwitchTask, forget, measure, write_folder
from transforms.switched_model import Switch, switched_model
from transforms.task_log import TaskLog
from transforms.user_metric import load_metric


@dataclass(frozen=True)
class Bench:
    """Where layers are measured: feeds, the outputs of the float model that count, and how models run.

    ``folder`` is where the work is written and ``workers`` do it; both may be on other machines that share
    the folder. ``log`` keeps what was measured.
    """

    feeds: Sequence[Mapping[str, np.ndarray]]
    expected: Sequence[Outputs]
    run: RunOptions
    folder: Path
    workers: Workers
    log: TaskLog


def measure_sensitivity(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    metric: str,
    bench: Bench,
    *,
    progress: Progress | None = None,
) -> Sensitivity:
    """Return what each of the formats does to the outputs of a model where one layer alone has them.

    What that layer reads, its weight and its bias are in the other formats, all else is as in the baseline,
    and all of it is computed in float32, as the nodes say. ``metric`` is one of METRICS or FILE.py:FUNCTION.
    One session of a model in which layers can be switched serves them all. The result does not depend on the
    workers, nor on how many there are.
    """
    wanted = [(one.name, choice.label) for one in candidates for choice in choices]
    names = {f"{metric}/{layer}/{label}": number for number, (layer, label) in enumerate(wanted)}
    if any(bench.log.get(name) is None for name in names):
        _write(model, candidates, choices, wanted, bench)
    tasks = {name: SwitchTask(str(bench.folder), number, metric) for name, number in names.items()}
    try:
        values = list(run_tasks(measure, tasks, bench.workers, bench.log, progress).values())
    finally:
        forget()
    op, harm = {one.name: one.op for one in candidates}, _harm(metric, bench)
    damages = (
        Damage(layer, op[layer], label, value, harm(value))
        for (layer, label), value in zip(wanted, values, strict=True)
    )
    return Sensitivity("measured", metric, len(bench.feeds), tuple(damages))


def _write(
    model: MixedModel,
    candidates: Sequence[Candidate],
    choices: Sequence[LayerRule],
    wanted: Sequence[Switch],
    bench: Bench,
) -> None:
    """Write the model whose layers can be switched, and all that is run through it."""
    base = model.build({}, finished=False)
    everywhere = {choice.label: {one.name: choice for one in candidates} for choice in choices}
    others = {label: model.build(mix, finished=False) for label, mix in everywhere.items()}
    switches = switched_model(base, others, wanted)
    write_folder(
        bench.folder, base.graph, [switches[one] for one in wanted], bench.feeds, bench.expected, bench.run
    )


def _harm(metric: str, bench: Bench) -> Callable[[float], float]:
    if metric in METRICS:
        return METRICS[metric].harm
    best = load_metric(metric)([dict(outputs) for outputs in bench.expected])
    return lambda value: max(0.0, best - value)
