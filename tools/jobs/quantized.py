"""What both quantizers do: read samples, mix formats, tune, and write the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_graphsurgeon as gs

from tools.cli.data_options import report_litter
from tools.cli.job_options import SchemeJob
from tools.cli.progress import Phases
from tools.cli.said import say, warn
from tools.cli.scheme_options import recorded_options
from tools.jobs.finetune import tune, tuning_options
from tools.jobs.storage import store
from tools.jobs.written import RUNNING, WRITING, run_once
from tools.summaries import quantize, running, tuning
from tools.summaries.target import SATURATES, refuse_broken, target_lines
from tools.summaries.timing import beside_lines, for_cpu, what_helps
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.conversion.record import Record
from transforms.graph.typed import info_of
from transforms.model import provenance
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.first_run import FirstRun
from transforms.precision.assign import Step
from transforms.precision.mix import MixedPrecision, MixingOptions, ProgressHooks, mix_precision
from transforms.precision.mixed import Mixed
from transforms.run.feeds import open_feeds
from transforms.run.workers import Workers
from transforms.runtime.devices import has_vnni
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.targets import ON_CPU, target
from transforms.search.target import LATENCY

SLOW_HERE = ("int8",)
FASTER = "ONNX Runtime's CPU provider runs int8 activations slowly: {} makes a faster model for it"

NOTHING_BESIDE: AbstractContextManager[object] = nullcontext()

_SCHEME = provenance.PREFIX + "scheme"


@dataclass(frozen=True)
class Made:
    """A quantized model before it is tuned, with the float model as it was quantized.

    ``mixed``: the result of automatic mixed precision, if that chose the formats. ``placed``: whether layers
    were looked for that are faster in float.
    """

    graph: gs.Graph
    done: Record
    scheme: Scheme
    float_graph: Callable[[], gs.Graph]
    mixed: MixedPrecision | None = None
    placed: bool = False

    @classmethod
    def of(cls, mixed: MixedPrecision) -> Made:
        """Return a model in mixed precision."""
        return cls(mixed.graph, mixed.done, mixed.scheme, lambda: mixed.float_graph, mixed)


@dataclass(frozen=True)
class Finished:
    """A quantized model as it was written: what was done, by which scheme, its files, its first run."""

    made: Made
    graph: gs.Graph
    scheme: Scheme
    files: list[Path]
    first: FirstRun


Compare = Callable[[Made, gs.Graph, FirstRun], bool]
"""Compares a model as it is written with the float model, if that says anything new, and returns whether it
did; raises ValueError if the model is of no use."""


def calibration_data(job: SchemeJob, run: RunOptions) -> CalibrationData | None:
    """Return the samples of ``--data``, or None."""
    if job.data is None:
        return None
    report_litter(job.data)
    return CalibrationData(
        job.data, job.images, job.limit, job.calibration_cache, run, memory_limit=job.memory_limit
    )


def phases_of(
    scheme: Scheme,
    *,
    has_data: bool,
    compares: bool = False,
    searches: bool = False,
    places: bool = False,
) -> Phases:
    """Return what is done to quantize a model by a scheme; ``compares``: outputs are looked at.

    ``searches``: layers are looked for that have to be finer, ``places``: that are faster in float.
    """
    rule = scheme.auto_mixed_precision
    timing = "timing" if rule and rule.strategy == LATENCY else ""
    mixing = ("measuring", timing, "trying") if rule else ("quantizing",)
    measured = ("calibrating", *mixing) if has_data else ()
    tuned = ("reloading", "tuning") if scheme.finetune else ()
    fitted = ("fitting",) if has_data and scheme.fits_weights else ()
    compared = ("comparing",) if compares else ()
    placed = ("placing",) if places else ()
    searched = ("searching",) if searches else ()
    ends = *placed, *searched, *tuned, RUNNING, *compared, WRITING
    return Phases("loading", "preparing", *measured, *fitted, *ends)


def mix_model(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    options: MixingOptions,
    job: SchemeJob,
    phases: Phases,
) -> MixedPrecision:
    """Do what :func:`transforms.precision.mix.mix_precision` does, with progress on the terminal."""
    source = graph.source_sha256

    def _bytes_written(mixed: Mixed, used: Scheme) -> int:
        store(mixed.graph, job.storage, used.named_formats)
        recorded = provenance.entries("quantize", recorded_options(job), source)
        entries = _entries(recorded, used.with_(finetune=scheme.finetune), mixed.done)
        return job.bytes_written(mixed.graph, entries)

    options = replace(options, bytes_written=_bytes_written)
    with phases("preparing") as bar:
        tried: list[Step] = []
        show = bar.shows("trying", "model")

        def _note(step: Step) -> None:
            tried.append(step)
            decision = "accepted" if step.accepted else "skipped"
            show(len(tried), None, f"{step.value:.6g} {decision}")

        measuring, timing = bar.shows("measuring", "run"), bar.shows("timing", "layer")
        hooks = ProgressHooks(bar.shows("calibrating", "sample"), measuring, timing, _note)
        try:
            return mix_precision(graph, scheme, data, options, hooks)
        except MissingDataError as error:
            raise ValueError(f"{error}: give --data DIR") from error


def finish(
    made: Made,
    scheme: Scheme,
    output: Path,
    recorded: Mapping[str, object],
    job: SchemeJob,
    phases: Phases,
    workers: Workers | None = None,
    last: Callable[[gs.Graph], None] | None = None,
    *,
    compare: Compare | None = None,
    beside: AbstractContextManager[object] = NOTHING_BESIDE,
) -> Finished:
    """Tune a model if ``scheme`` says so, write it with the ``recorded`` options, and say what was done.

    ``workers`` run the samples for that; ``last`` is a rewrite of the model as it is written.
    ``compare`` looks at its outputs when nothing changes them any more. ``beside``: a file that appears with
    the model or not at all. Raises ValueError or OSError; nothing is written then.
    """
    graph, used = made.graph, made.scheme
    entries = provenance.entries("quantize", recorded, graph.source_sha256)
    if scheme.finetune:
        with phases("reloading"):
            reference = made.float_graph()
        tuned = tune_quantized(graph, reference, used.with_(finetune=scheme.finetune), job, phases, workers)
        if made.mixed:
            info_of(tuned).metadata.setdefault(_SCHEME, "")  # the first of the entries, as in files of old
        if made.mixed is None or _holds(made.mixed, tuned):
            graph, used = tuned, used.with_(finetune=scheme.finetune)
    if last:
        last(graph)
    unstored = copy_graph(graph) if compare and job.storage != "plain" else graph
    row = target(used.target) if used.target else None
    with phases("running"):
        stored = store(graph, job.storage, used.named_formats)
        if row:
            refuse_broken(graph, row)
        first = run_once(graph, job.input, job, row)
        about = [*target_lines(graph, row)] if row else []
        if row and row.name == ON_CPU and has_vnni() is False:
            about.append(SATURATES)
    judged = bool(scheme.finetune)
    if compare:
        with phases("comparing"):  # another form of the same numbers may have no kernels here
            judged |= compare(made, graph if first.why_not is None else unstored, first)
    elif first.kept:
        check_mixed(made.mixed, graph)
    entries = _entries(entries, used, made.done)
    _check_size(lambda: job.bytes_written(graph, entries, first.exported), scheme)
    with phases("writing"), beside:
        files = job.save(graph, output, entries, first.exported)
    summary = quantize.lines(made.done, graph, files, first, is_plain=not stored)
    *lines, end = (*stored, *running.kept_lines(first), *summary)
    is_slow = row is None and used.activation in SLOW_HERE and first.time is None
    hint = [FASTER.format(for_cpu(used))] if is_slow else []
    is_nbits = "matmul_nbits" in job.given
    advice = what_helps(used, first.time, placed=made.placed, needs_blocks=is_nbits)
    for line in (*lines, *hint, *beside_lines(first.time, advice), end, *about):
        say(line)
    for line in running.warnings(first, job.config, judged=judged):
        warn(line)
    return Finished(made, graph, used, files, first)


def _entries(recorded: Mapping[str, str], used: Scheme, done: Record) -> dict[str, str]:
    """Return what is said of a model in its metadata."""
    return {**recorded, _SCHEME: used.to_toml(), **done.decisions.entries()}


def _check_size(size: Callable[[], int], scheme: Scheme) -> None:
    """Raise ValueError for a file above its budget: tuning, or nodes left in float, may add to a model."""
    most = scheme.auto_mixed_precision.size_target if scheme.auto_mixed_precision else None
    if most is not None and (taken := size()) > most:
        raise ValueError(f"size_target {most:,} bytes is exceeded: the model takes {taken:,}")


def tune_quantized(
    graph: gs.Graph,
    float_graph: gs.Graph,
    scheme: Scheme,
    job: SchemeJob,
    phases: Phases,
    workers: Workers | None = None,
) -> gs.Graph:
    """Return the graph with tuned weights, and print what became of each layer.

    ``float_graph`` is the float model as it was quantized. Raises ValueError without samples, or if they do
    not fit.
    """
    rule = scheme.finetune
    assert rule is not None, "asked for by the scheme"
    if job.data is None:
        raise ValueError(f"fine-tuning ({rule.algorithm}) needs samples: give --data DIR")
    limit = min((limit for limit in (job.limit, rule.data_size) if limit), default=None)
    found = open_feeds(job.data, model_inputs(float_graph), images=job.images, limit=limit)
    feeds = [feed for _, feed in found]
    output = None if rule.output_index < 0 else rule.output_index
    options = tuning_options(rule, job.run, output_index=output, memory_limit=job.memory_limit)
    formats = scheme.named_formats
    done = tune(float_graph, graph, feeds, options, phases, formats=formats, workers=workers)
    for line in tuning.tuning_lines(done, len(feeds)):
        say(line)
    for line in filter(None, (tuning.broken_limit(done, job.memory_limit), *tuning.poor(done))):
        warn(line)
    return done.graph


def check_mixed(mixed: MixedPrecision | None, graph: gs.Graph) -> None:
    """Raise TargetError for a model in mixed precision that misses its target as it is written."""
    target = mixed.assignment.target if mixed and mixed.assignment else None
    if target is None or mixed is None or mixed.evaluation is None:
        return
    value = mixed.evaluation.score(copy_graph(graph))
    target.check(value, "the model as it is written")
    say(f"As it is written: {target.text(value)}, the target is {target.bound}")


def _holds(mixed: MixedPrecision, tuned: gs.Graph) -> bool:
    """Return whether the tuned model meets the target, if there is one; held-out errors do not show that."""
    target = mixed.assignment.target if mixed.assignment else None
    if target is None or mixed.evaluation is None:
        return True
    value = mixed.evaluation.score(tuned)
    holds = target.holds(value)
    kept = "" if holds else ": the model is not changed"
    say(f"Tuned: {target.text(value)}, the target is {target.bound}{kept}")
    return holds
