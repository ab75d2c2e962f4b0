"""What ``tools.finetune`` does once its options are known to be right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from tools.cli.data_options import open_samples
from tools.cli.executors import open_workers
from tools.cli.progress import Shown
from tools.cli.said import say, warn
from tools.cli.unrolled import unrolled
from tools.jobs.finetune_options import FinetuneJob
from tools.jobs.written import ENDING, run_once
from tools.summaries import running, tuning
from tools.summaries.quantize import decided
from tools.summaries.timing import beside_lines
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.float_reference import float_reference
from transforms.finetune.tuned import TunedModel
from transforms.graph.typed import info_of
from transforms.judge.decisions import Decisions
from transforms.model import provenance
from transforms.pipelines.check_outputs import check_outputs
from transforms.pipelines.first_result import FirstRun
from transforms.pipelines.store import stored
from transforms.pipelines.tune import tuned, tuning_options
from transforms.run.feeds import Feeds, batch_feeds
from transforms.runtime import devices
from transforms.runtime.inputs import model_inputs
from transforms.runtime.session import RunOptions
from transforms.scheme.finetune_rule import FinetuneRule

_RECORDED = (
    *("algorithm", "num_iterations", "learning_rate", "early_stop", "fixed_seed", "batch_size", "limit"),
    *("target_op_type", "selective_update", "following_relu", "output_index", "full_range"),
)


@dataclass(frozen=True)
class Tuned:
    """A tuned model as it was written: what became of its layers, its files, its first run."""

    done: TunedModel
    files: list[Path]
    first: FirstRun


def finetune_file(job: FinetuneJob) -> Tuned:
    """Tune ``job.quantized``, write ``job.output`` and say what became of each layer.

    Raises ValueError or OSError; nothing is written then.
    """
    with unrolled(job, job.float_model) as own:
        return _finetune_file(own)


def _finetune_file(job: FinetuneJob) -> Tuned:
    rule = rule_of(job)
    limits = {"memory_limit": job.memory_limit, "device": job.optim_device}
    chosen = tuning_options(rule, _run(job), output_index=job.output_index, **limits)
    external = job.save_as_external_data
    output = model_io.check_output(job.output, job.quantized, force=job.force, external_data=external)
    model_io.check_output(job.output, job.float_model, force=job.force)
    with Shown("loading", "tuning", *ENDING) as events:
        events.phase("loading")
        quantized = model_io.load(job.quantized)
        twin = float_reference(lambda: model_io.load(job.float_model), quantized)
        model_io.refuse_source(twin, output)  # saving looks at the source of the result, the quantized model
        feeds = open_samples(job, twin)
        data = _batches(twin, feeds, job.batch_size)
        with open_workers(job) as shared:
            done = tuned(twin, quantized, data, chosen, events, workers=shared)
        entries = provenance.entries("finetune", _recorded(job), quantized.source_sha256)
        events.phase("running")
        lines = stored(done.graph, job.storage)
        first = run_once(done.graph, job.float_model, job)
        record = Decisions()
        if first.kept:  # after all that was measured
            check_outputs(twin, done.graph, CalibrationData(feeds, run=chosen.run), record)
        events.phase("writing")
        files = job.save(done.graph, output, entries, first.exported)
    for line in (
        *info_of(quantized).notes,
        *lines,
        *tuning.lines(done, len(feeds), quantized.source_files, files),
        *running.kept_lines(first),
        *decided(record),
        *beside_lines(first.time),
    ):
        say(line)
    for line in tuning.reasons(done) if job.verbose else ():
        say(line)
    broken = tuning.broken_limit(done, job.memory_limit)
    for line in filter(None, (broken, *tuning.poor(done), *running.warnings(first, judged=True))):
        warn(line)
    return Tuned(done, files, first)


def rule_of(job: FinetuneJob) -> FinetuneRule:
    """Return what the command line says of tuning in the words of a scheme."""
    return FinetuneRule(
        algorithm=job.algorithm,
        num_iterations=job.num_iterations or FinetuneRule.num_iterations,
        learning_rate=job.learning_rate or FinetuneRule.learning_rate,
        early_stop=job.early_stop,
        fixed_seed=job.fixed_seed,
        target_op_type=job.target_op_type,
        selective_update=job.selective_update,
        following_relu=job.following_relu,
        full_range=job.full_range,
    )


def _run(job: FinetuneJob) -> RunOptions:
    """Return how models run; ValueError for a device, also of the linear algebra, that is not there."""
    devices.array_module(job.optim_device)
    on_cpu = job.infer_device == devices.CPU
    return RunOptions(job.provider if on_cpu else devices.provider(job.infer_device), job.threads)


def _batches(twin: gs.Graph, feeds: Feeds, size: int) -> list[Mapping[str, np.ndarray]]:
    """Return samples put together; ValueError where all of several make one batch."""
    found = batch_feeds([feed for _, feed in feeds], model_inputs(twin), size)
    if len(found) == 1 < len(feeds):
        needed = "one batch to fit to, one to judge by are needed"
        raise ValueError(f"batch size {size} puts all {len(feeds)} samples together: {needed}")
    return found


def _recorded(job: FinetuneJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _RECORDED}
