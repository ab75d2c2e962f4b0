"""Step: quantize in mixed precision, as the table of the scheme says."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record
from transforms.mix_precision.evaluation import MixingOptions
from transforms.mix_precision.mix import MixedPrecision, ProgressHooks, mix_precision
from transforms.mix_precision.mixed_model import Mixed
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.entries import bytes_written
from transforms.pipelines.store import stored
from transforms.pipelines.work import Work
from transforms.scheme import Scheme
from transforms.search.assign_precision import Step


@dataclass
class MixWork(Work):
    """A work in mixed precision: how it is done, and the result of the step ``mix``."""

    mixing: MixingOptions = field(default_factory=MixingOptions)
    mixed: MixedPrecision | None = None


def mix(work: Work) -> None:
    """Give layers cheaper formats as far as the target allows; the record has what is to be said of it.

    Raises as :func:`transforms.mix_precision.mix.mix_precision` does.
    """

    def _bytes_written(mixed: Mixed, scheme: Scheme) -> int:
        stored(mixed.graph, work.options.storage, scheme.named_formats)
        return bytes_written(work, mixed.graph, scheme.with_(finetune=work.tuning), mixed.done)

    if not isinstance(work, MixWork):
        raise TypeError("the step 'mix' takes a MixWork")
    work.events.phase("preparing")
    options = replace(work.mixing, bytes_written=_bytes_written)
    mixed = mix_precision(work.graph, work.asked, work.data, options, _hooks(work))
    for one in fields(Record):
        setattr(work.record, one.name, getattr(mixed.done, one.name))
    work.mixed, work.graph, work.float_graph = mixed, mixed.graph, mixed.float_graph
    work.scheme = work.record.scheme = mixed.scheme


def holds(work: Work, tuned: gs.Graph) -> bool:
    """Return whether the tuned model meets the target, if there is one; held-out errors do not show that."""
    mixed = mixed_of(work)
    if mixed is None:
        return True
    target = mixed.assignment.target if mixed.assignment else None
    if target is None or mixed.evaluation is None:
        return True
    value = mixed.evaluation.score(tuned)
    kept = "" if target.holds(value) else ": the model is not changed"
    work.record.rechecked.append(f"Tuned: {target.text(value)}, the target is {target.bound}{kept}")
    return target.holds(value)


def check_mixed(work: Work) -> None:
    """Raise TargetError for a model in mixed precision that misses its target as it is written."""
    mixed = mixed_of(work)
    target = mixed.assignment.target if mixed and mixed.assignment else None
    if target is None or mixed is None or mixed.evaluation is None:
        return
    value = mixed.evaluation.score(copy_graph(work.graph))
    target.check(value, "the model as it is written")
    work.record.rechecked.append(f"As it is written: {target.text(value)}, the target is {target.bound}")


def mixed_of(work: Work) -> MixedPrecision | None:
    """Return the result of mixed precision, None for a work without it."""
    return work.mixed if isinstance(work, MixWork) else None


def _hooks(work: Work) -> ProgressHooks:
    tried: list[Step] = []

    def _note(step: Step) -> None:
        tried.append(step)
        decision = "accepted" if step.accepted else "skipped"
        work.events.phase("trying", "model")(len(tried), None, f"{step.value:.6g} {decision}")

    def _calibrating(done: int, total: int | None) -> None:
        work.events.phase("calibrating", "sample")(done, total)

    def _measuring(done: int, total: int, note: str) -> None:
        work.events.phase("measuring", "run")(done, total, note)

    def _timing(done: int, total: int) -> None:
        work.events.phase("timing", "layer")(done, total)

    return ProgressHooks(_calibrating, _measuring, _timing, _note)
