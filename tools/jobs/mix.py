"""What ``tools.auto_mixed_precision`` does once its options are known to be right."""

from __future__ import annotations

from pathlib import Path

import onnx_graphsurgeon as gs

from tools.charts import pareto_plot, plot_file, sensitivity_chart
from tools.cli.command_line import same_file
from tools.cli.executors import threads_of, workers
from tools.cli.output_file import check_writable, write_text
from tools.cli.progress import Shown
from tools.cli.said import say
from tools.cli.scheme_options import check_effect, mixing_scheme, recorded_options
from tools.cli.unrolled import unrolled
from tools.cli.user_code import check_code
from tools.jobs.mix_options import MixJob
from tools.jobs.work import Finished, calibration_data, finish, refuse_untunable, untuned
from tools.summaries import mixing as mixing_summary
from transforms import model_io
from transforms.calibrate.calibrate_plan import MissingDataError
from transforms.pipelines.mix import MixWork, mix
from transforms.pipelines.options import Options
from transforms.pipelines.recipes import MIX
from transforms.pipelines.source import Source
from transforms.pipelines.steps import run
from transforms.precision.mix import MixedPrecision
from transforms.precision.mixing_options import MixingOptions
from transforms.run.array_files import read_array
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.mixing_rule import TARGETS
from transforms.search.target import LATENCY


def mix_file(job: MixJob) -> tuple[MixedPrecision, Finished | None]:
    """Quantize ``job.input`` in mixed precision, say and write the results, and return them.

    Raises ValueError or OSError; no model is written then.
    """
    with unrolled(job, job.input) as own:
        return _mix_file(own)


def _mix_file(job: MixJob) -> tuple[MixedPrecision, Finished | None]:
    scheme = mixing_scheme(job)
    _check_effect(scheme, job)
    check_code(scheme, job)
    output = _check_files(job)
    refuse_untunable(scheme, job)
    run_options = RunOptions(job.provider, threads_of(job.threads, job.jobs))
    with workers(job.jobs, job.dask) as opened, Shown(*_phases(scheme, job)) as events:
        labels = None if job.labels is None else read_array(job.labels)
        work = MixWork(
            gs.Graph(),
            untuned(scheme),
            calibration_data(job, run_options),
            source=Source(job.input),
            options=_options(job),
            tuning=scheme.finetune,
            events=events,
            mixing=MixingOptions(run_options, opened, job.resume, labels, job.analyze_only),
            recorded=recorded_options(job),
        )
        mixed = _mixed(work, job)
        if not output:
            for line in mixing_summary.lines(mixed):
                say(line)
            return mixed, None
        run(work, MIX[MIX.index(mix) + 1 :])
        return mixed, finish(work, output, job)


def _mixed(work: MixWork, job: MixJob) -> MixedPrecision:
    """Take the steps up to the mixed model, and write what was found of its layers."""
    try:
        run(work, MIX[: MIX.index(mix) + 1])
    except MissingDataError as error:
        raise ValueError(f"{error}: give --data DIR") from error
    assert work.mixed is not None, "the last step makes it"
    _write_results(work.mixed, job)
    return work.mixed


def _options(job: MixJob) -> Options:
    return Options(
        run=job.run,
        times=job.time,
        storage=job.storage,
        functions=job.functions,
        external_data=job.save_as_external_data,
    )


def _phases(scheme: Scheme, job: MixJob) -> list[str]:
    rule = scheme.auto_mixed_precision
    measured = ["calibrating", "measuring", "trying"] if job.data else []
    if rule and rule.strategy == LATENCY:
        measured.insert(2, "timing")
    tuned = ["reloading", "tuning"] if scheme.finetune else []
    return ["loading", "preparing", *measured, *tuned, *(["running", "writing"] if job.output else [])]


def _check_effect(scheme: Scheme, job: MixJob) -> None:
    """Raise ValueError for an option that would do nothing with this scheme."""
    rule = scheme.auto_mixed_precision
    assert rule is not None, "the scheme has the table"
    if job.labels and rule.top1_target is None:
        raise ValueError("--labels goes with --top1-target")
    targets = [key for key in TARGETS if key in job.given]
    if targets and job.analyze_only and rule.metric:
        words = "goes with --output, or without --metric"
        raise ValueError(f"{job.given[targets[0]]} {words}: those use the metric of the target")
    check_effect(scheme, job)


def _check_files(job: MixJob) -> Path | None:
    """Raise before any work what would prevent writing."""
    files = {"--output": job.output, "--json": job.json, "--csv": job.csv, "--chart": job.chart}
    reason = same_file({**files, "--plot": job.plot, "--calibration-cache": job.calibration_cache})
    if reason:
        raise ValueError(reason)
    for path in filter(None, (job.json, job.csv)):
        check_writable(path, force=job.force, inputs=(job.input, job.labels))
    for path in filter(None, (job.chart, job.plot)):
        plot_file.check_plot(path, force=job.force)
    if job.calibration_cache:
        model_io.check_output(job.calibration_cache, force=True)
    external = job.save_as_external_data
    if not job.output:
        return None
    return model_io.check_output(job.output, job.input, force=job.force, external_data=external)


def _write_results(mixed: MixedPrecision, job: MixJob) -> None:
    found, chosen = mixed.sensitivity, mixed.assignment
    if found is None:
        return
    times = {key: one.columns for key, one in mixed.layer_times.items()}
    if job.json:
        write_text(job.json, found.to_json(times))
    if job.csv:
        write_text(job.csv, found.to_csv(times))
    if job.chart:
        sensitivity_chart.draw(found, job.chart)
    if job.plot and chosen:
        elements = sum(one.weights + one.activations for one in mixed.candidates)
        pareto_plot.draw(chosen.steps, chosen.target, job.plot, metric=mixed.metric, elements=elements)
