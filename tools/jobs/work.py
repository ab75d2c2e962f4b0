"""What both quantizers do around their steps: the options of a work, its summary, and its file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tools.cli.data_options import report_litter
from tools.cli.job_options import SchemeJob
from tools.cli.said import say, warn
from tools.jobs.quantize_options import QuantizeJob
from tools.summaries import mixing, quantize, running, tuning
from tools.summaries.precision import placed_lines, reached_lines
from tools.summaries.target import SATURATES, target_lines
from tools.summaries.timing import beside_lines, for_cpu, what_helps
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.graph.some_names import counted
from transforms.judge.decisions import Checked
from transforms.pipelines.check_outputs import UselessError
from transforms.pipelines.entries import save
from transforms.pipelines.mix import mixed_of
from transforms.pipelines.work import Work
from transforms.runtime.devices import has_vnni
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.targets import ON_CPU, target

SLOW_HERE = ("int8",)
FASTER = "ONNX Runtime's CPU provider runs int8 activations slowly: {} makes a faster model for it"

NOTHING_BESIDE: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True)
class Finished:
    """A model as it was written: how it was made, and its files."""

    work: Work
    files: list[Path]


def calibration_data(job: SchemeJob, run: RunOptions) -> CalibrationData | None:
    """Return the samples of ``--data``, or None."""
    if job.data is None:
        return None
    report_litter(job.data)
    return CalibrationData(
        job.data, job.images, job.limit, job.calibration_cache, run, memory_limit=job.memory_limit
    )


def untuned(scheme: Scheme) -> Scheme:
    """Return the scheme without tuning, which rounds weights itself unless ``fit_weights`` is asked for."""
    fits = scheme.fit_weights if scheme.finetune is None else scheme.fit_weights is True
    return scheme.with_(finetune=None, fit_weights=fits)


def refuse_untunable(scheme: Scheme, job: SchemeJob) -> None:
    """Raise ValueError for tuning without samples."""
    if scheme.finetune and job.data is None:
        raise ValueError(f"fine-tuning ({scheme.finetune.algorithm}) needs samples: give --data DIR")


def finish(
    work: Work, output: Path, job: SchemeJob, beside: AbstractContextManager[object] = NOTHING_BESIDE
) -> Finished:
    """Write the model of a work, and say how it was made.

    ``beside``: a file that appears with the model or not at all.
    """
    with beside:
        files = save(work, output, force=job.force)
    for line in _lines(work, files, job):
        say(line)
    for line in _warnings(work, job):
        warn(line)
    return Finished(work, files)


def useless(error: UselessError, work: Work, job: SchemeJob) -> ValueError:
    """Return the error of a language model of no use, with options that make a better one."""
    is_alone = work.scheme.format(work.scheme.activation) is None
    weight, ways = str(work.scheme.weight) if is_alone else "", list(_more_bits(job))
    config = running.preset_of(job.config, work.scheme)
    return ValueError(running.useless(error.outputs, config, weight=weight, ways=ways))


def _lines(work: Work, files: list[Path], job: SchemeJob) -> Iterator[str]:
    """Yield the summary: steps in order, sizes, where and how fast the model runs, and its target."""
    record, scheme, options = work.record, work.scheme, work.options
    assert record.first is not None, "the model was tried out"
    if record.fixed:
        yield f"Fixed: {counted(record.fixed, 'free dimension')} of inputs"
    if mixed := mixed_of(work):
        yield from mixing.lines(mixed)
    yield from placed_lines(record.placed)
    where = work.held_out.where if work.held_out else ""
    yield from reached_lines(record.reached, options.goal, options.fallback, where)
    if record.tuned:
        yield from tuning.tuning_lines(record.tuned, record.tuned_on)
    yield from record.rechecked
    yield from record.stored
    yield from running.kept_lines(record.first)
    is_plain = options.storage == "plain"
    *lines, end = quantize.lines(record, work.graph, files, record.first, is_plain=is_plain)
    yield from lines
    if not scheme.target and scheme.activation in SLOW_HERE and record.first.time is None:
        yield FASTER.format(for_cpu(scheme))
    is_placed, is_nbits = record.placed is not None, options.matmul_nbits
    advice = what_helps(scheme, record.first.time, placed=is_placed, needs_blocks=is_nbits)
    yield from beside_lines(record.first.time, advice)
    yield end
    if scheme.target:
        row = target(scheme.target)
        yield from target_lines(work.graph, row)
        if row.name == ON_CPU and has_vnni() is False:
            yield SATURATES


def _warnings(work: Work, job: SchemeJob) -> Iterator[str]:
    """Yield what is wrong with a model that is written all the same."""
    record, outputs = work.record, work.record.decisions.outputs
    assert record.first is not None, "the model was tried out"
    config = running.preset_of(job.config, work.scheme)
    if record.is_compared and outputs:
        yield from _poor(outputs, config, job, tuned=work.tuning is not None)
    if record.tuned:
        limit = tuning.broken_limit(record.tuned, job.memory_limit)
        yield from filter(None, (limit, *tuning.poor(record.tuned)))
    judged = record.is_compared or record.tuned is not None
    yield from running.warnings(record.first, config, judged=judged)


def _poor(outputs: Checked, config: str, job: SchemeJob, *, tuned: bool) -> Iterator[str]:
    """Yield a warning for each figure that leaves little of the outputs, with what helps."""
    where, ways = outputs.where, list(_more_bits(job))
    yield from running.poor(outputs.error, where, config, tuned=tuned, of_tokens=outputs.of_tokens, ways=ways)
    if outputs.others is not None:
        others = "other outputs"
        yield from running.poor(outputs.others, where, config, tuned=tuned, ways=ways, what=others)


def _more_bits(job: SchemeJob) -> Iterator[str]:
    """Yield how the last changes leave more of the outputs."""
    if not isinstance(job, QuantizeJob):
        return
    if job.kv_cache == "int4":
        yield "--kv-cache int8 has more bits for caches"
    elif job.kv_cache:
        yield "without --kv-cache caches stay float"
    if job.embeddings == "int4":
        yield "--embeddings int8 has more bits for embeddings"
