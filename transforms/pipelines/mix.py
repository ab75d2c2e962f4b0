"""Step: quantize in mixed precision, as the table of the scheme says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from transforms.calibrate.calibration_data import CalibrationData
from transforms.conversion.rows import Row, shows
from transforms.graph.embeddings import logits_of
from transforms.judge.budget import has_many_nodes
from transforms.judge.sample_roles import checking
from transforms.pipelines.entries import bytes_written
from transforms.pipelines.for_runtime import FOR_RUNTIME, STORE, TRY_OUT
from transforms.pipelines.in_memory import FIT
from transforms.pipelines.load import load
from transforms.pipelines.recipes import COMPARE, GATE, TUNE_WEIGHTS
from transforms.pipelines.store import stored
from transforms.pipelines.work import Work, WorkRow
from transforms.precision.assign import Step
from transforms.precision.held_out import without
from transforms.precision.mix import MixedPrecision, ProgressHooks, mix_precision
from transforms.precision.mixed_model import Mixed
from transforms.precision.mixing_options import MixingOptions
from transforms.run.events import Progress
from transforms.scheme import Scheme

_LINES = 512
"""Reserve, in bytes, for metadata that are written later, on fitted weights and outputs."""


@dataclass
class MixWork(Work):
    """A work in mixed precision; ``mixing``: options of the measurements."""

    mixing: MixingOptions = field(default_factory=MixingOptions)

    def close(self) -> None:
        """Let rules decide all 'auto' keys except whether weights are fitted."""
        fits = self.asked.fits_weights
        super().close()
        self.asked = self.scheme = self.asked.with_(fit_weights=fits or self.asked.fit_weights)


def mix(work: Work) -> None:
    """Move layers to cheaper formats as far as the target allows, and record the result.

    Raises as :func:`transforms.precision.mix.mix_precision` does.
    """

    def _bytes_written(mixed: Mixed, scheme: Scheme) -> int:
        stored(mixed.graph, work.options.storage, scheme.named_formats)
        written = bytes_written(work, mixed.graph, scheme.with_(finetune=work.options.tuning), mixed.done)
        return written + (_LINES if work.data is not None else 0)

    if not isinstance(work, MixWork):
        raise TypeError("the step 'mix' takes a MixWork")
    work.events.phase("preparing")
    options = replace(work.mixing, bytes_written=_bytes_written)
    fits = work.asked.fits_weights  # afterwards: the step ``fit``
    asked = work.asked.with_(fit_weights=False) if fits else work.asked
    mixed = mix_precision(work.graph, asked, _deciding(work), options, _hooks(work))
    work.record.take_over(mixed.done)
    work.record.decisions = mixed.done.decisions
    work.record.mixed, work.record.sensitivity = mixed, mixed.sensitivity
    work.record.decisions.searched = mixed.assignment is not None
    work.graph, work.base.graph = mixed.graph, mixed.float_graph
    work.scheme = work.record.scheme = mixed.scheme


def _deciding(work: MixWork) -> CalibrationData | None:
    """Return the samples that may decide: of texts, without those that measure the final model.

    All samples decide if the user gives labels, which are those of all samples.
    """
    data, mixing = work.data, work.mixing
    if data is None or mixing.analyse_only or mixing.labels is not None or not logits_of(work.graph):
        return data
    work.data = data = data.repeatable(work.graph)
    count = sum(1 for _ in data.feeds(work.graph))
    compares = work.options.compares or not has_many_nodes(work.graph)
    work.options = replace(work.options, compares=compares)
    return without(data, work.graph, checking(count, texts=True), count)


def keep_target(work: Work) -> None:
    """Step: undo tuning if the outputs miss the target with it, which errors of layers do not show."""
    mixed = mixed_of(work)
    target = mixed.assignment.target if mixed and mixed.assignment else None
    if target is None or work.record.untuned is None or mixed is None or mixed.bench is None:
        return
    value = mixed.bench.score(work.graph)
    if not target.holds(value):
        work.graph, work.scheme = work.record.untuned
    outcome = "" if target.holds(value) else ": the model is not changed"
    work.record.rechecked.append(f"Tuned: {target.text(value)}, the target is {target.bound}{outcome}")


def check_target(work: Work) -> None:
    """Step: raise TargetError if the model misses its target after changes that were not measured."""
    mixed, first = mixed_of(work), work.record.first
    target = mixed.assignment.target if mixed and mixed.assignment else None
    if target is None or mixed is None or mixed.bench is None:
        return
    if not (work.options.changes_last or (first is not None and first.kept)):
        return
    value = mixed.bench.score(work.graph)
    target.check(value, "the model as it is written")
    work.record.rechecked.append(f"As it is written: {target.text(value)}, the target is {target.bound}")


def _shows(work: Work) -> tuple[str, ...]:
    if work.data is None:
        return ("preparing",)
    return ("preparing", "calibrating", "measuring layers", "trying models")


_MIXED = {"record.mixed": "mix"}

MIX: tuple[WorkRow, ...] = (
    Row(load, phases=shows("loading")),
    Row(mix, needs={"graph": "load"}, phases=_shows),
    FIT,
    TUNE_WEIGHTS,
    Row(keep_target, when=lambda work: work.options.tuning is not None, needs=_MIXED, after=("tune",)),
    GATE,
    *FOR_RUNTIME,
    STORE,
    TRY_OUT,
    COMPARE,
    Row(check_target, needs={**_MIXED, "record.first": "try_out"}, after=("compare",)),
)
"""Quantizing in mixed precision."""


def mixed_of(work: Work) -> MixedPrecision | None:
    """Return the result of mixed precision, None before it."""
    return work.record.mixed if isinstance(work.record.mixed, MixedPrecision) else None


def _hooks(work: Work) -> ProgressHooks:
    tried: list[Step] = []

    def _note(step: Step) -> None:
        tried.append(step)
        decision = "accepted" if step.accepted else "skipped"
        work.events.phase("trying models", "model")(len(tried), None, f"{step.value:.6g} {decision}")

    def _told(name: str, unit: str) -> Progress:
        def _tell(done: int, total: int | None, note: str = "") -> None:
            work.events.phase(name, unit)(done, total, note)

        return _tell

    calibrating, measuring = _told("calibrating", "sample"), _told("measuring layers", "run")
    return ProgressHooks(calibrating, measuring, _note)
