"""What ``tools.quantize`` does once its options are known to be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from tools.cli.executors import open_workers
from tools.cli.needs import Need
from tools.cli.progress import Shown
from tools.cli.said import say, warn
from tools.cli.scheme_options import (
    BLOCKS,
    CALIBRATION,
    UNMIXED,
    check_effect,
    quantization_scheme,
    recorded_options,
)
from tools.cli.unrolled import unrolled
from tools.cli.user_code import check_code
from tools.jobs import ranges
from tools.jobs.quantize_options import QuantizeJob
from tools.jobs.work import Finished, calibration_data, finish, refuse_untunable, untuned, useless
from tools.summaries import running
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.graph.embeddings import logits_of
from transforms.moves.improve import Move
from transforms.pipelines.check_outputs import UselessError
from transforms.pipelines.mix import MixWork
from transforms.pipelines.options import Options
from transforms.pipelines.recipes import FAST, MIX, QUANTIZE
from transforms.pipelines.record import JobRecord
from transforms.pipelines.require import NothingToDoError, require
from transforms.pipelines.source import Source
from transforms.pipelines.steps import Step, run
from transforms.pipelines.why_nothing import why_nothing
from transforms.pipelines.work import Work
from transforms.precision.mixing_options import MixingOptions
from transforms.run.workers import Workers
from transforms.scheme import Scheme
from transforms.search.target import LOST_TOP1, Target

_SHARED = Need(
    f"{CALIBRATION.words} or a table [finetune]",
    lambda scheme: CALIBRATION.is_met(scheme) or scheme.finetune is not None,
)
_RANDOM = "Warning: ranges come from random numbers; the result shows that the model runs, not its accuracy"


def print_config(job: QuantizeJob) -> None:
    """Say the scheme of a job, with all keys."""
    _say_config(_schemes(job)[1])


def quantize_file(
    job: QuantizeJob, steps: Sequence[Step] | None = None, moves: Sequence[Move] | None = None
) -> Finished | None:
    """Quantize ``job.input`` to ``job.output`` and say what was done; None if nothing was to be done.

    ``steps`` and ``moves``: others than the job's own. Says the scheme first if the job asks for that. Raises
    ValueError or OSError; nothing is written then, nor where nothing is done.
    """
    with unrolled(job, job.input) as own, open_workers(own) as workers:
        return _quantize_file(own, workers, steps, moves)


def _schemes(job: QuantizeJob) -> tuple[Scheme, Scheme]:
    """Return the scheme that is asked for, and the one that is followed."""
    asked = quantization_scheme(job)
    return asked, asked.by_rule() if job.fast else asked


def _say_config(scheme: Scheme) -> None:
    say(scheme.to_toml().removesuffix("\n"))


def _quantize_file(
    job: QuantizeJob,
    workers: Workers | None,
    steps: Sequence[Step] | None,
    moves: Sequence[Move] | None,
) -> Finished | None:
    asked, scheme = _schemes(job)
    if job.print_config:
        _say_config(scheme)
    of_tool = {"matmul_nbits": BLOCKS, "embeddings": UNMIXED}
    check_effect(asked, job, {**dict.fromkeys(("jobs", "dask"), _SHARED), **of_tool})
    check_code(scheme, job)
    external = job.save_as_external_data
    output = model_io.check_output(job.output, job.input, force=job.force, external_data=external)
    fixed = ranges.read(job, scheme)
    if job.calibration_cache:
        model_io.check_output(job.calibration_cache, force=True)
    with Shown(*_phases(scheme, job)) as events:
        work = _work(job, scheme, workers, events)
        work.fixed, work.moves = fixed, moves
        try:
            run(work, _steps(scheme, job) if steps is None else steps)
        except NothingToDoError:
            _say_why_nothing(job, scheme)
            return None
        except UselessError as error:
            raise useless(error, work, job) from error
        except MissingDataError as error:
            hint = "give --data DIR, or --random-data N for an experiment"
            raise ValueError(f"{error}: {hint}") from error
        grids = list(work.record.grids or ())
        finished = finish(work, output, job, ranges.writing(job, grids))
    for line in ranges.line(job, grids):
        say(line)
    for line in _warnings(work, job):
        warn(line)
    return finished


def _work(job: QuantizeJob, scheme: Scheme, workers: Workers | None, events: Shown) -> Work:
    """Return the work of a job, before any step."""
    does_itself = scheme.finetune is not None or scheme.auto_mixed_precision is not None
    keys = {"keys": dict(job.changes)} if job.changes else {}
    work = MixWork(
        gs.Graph(),
        untuned(scheme),
        _data(job, workers),
        source=Source(job.input),
        options=_options(job),
        tuning=scheme.finetune,
        compares=job.data is not None and not (job.fast or job.ranges or does_itself),
        may_compare=job.data is not None and not job.fast,
        events=events,
        mixing=MixingOptions(job.run),
        recorded={**recorded_options(job), **keys, "random_data": job.random_data},
        record=JobRecord(grids=None if job.export_ranges is None else []),
    )
    _refuse_goal(work, job)
    refuse_untunable(scheme, job)
    return work


def _steps(scheme: Scheme, job: QuantizeJob) -> Sequence[Step]:
    if scheme.auto_mixed_precision:
        return *MIX[:2], require, *MIX[2:]
    return FAST if job.fast else QUANTIZE


def _options(job: QuantizeJob) -> Options:
    goal = None if job.top1 is None else Target(LOST_TOP1, job.top1)
    return Options(
        run=job.run,
        goal=goal if job.min_sqnr is None else Target("sqnr", job.min_sqnr),
        fallback=job.fallback,
        times=job.time,
        matmul_nbits=job.matmul_nbits,
        accuracy_level=job.accuracy_level,
        embeddings=job.embeddings,
        kv_cache=job.kv_cache,
        storage=job.storage,
        functions=job.functions,
        external_data=job.save_as_external_data,
        random_data=job.random_data or 0,
    )


def _refuse_goal(work: Work, job: QuantizeJob) -> None:
    """Raise ValueError for a goal beside a table of the scheme that goes by outputs itself."""
    name = "--min-sqnr" if job.min_sqnr is not None else "--top1"
    if work.options.goal is not None and work.tuning is not None:
        raise ValueError(f"{name} does not go with the table [finetune] of the scheme")
    if work.options.goal is not None and work.asked.auto_mixed_precision is not None:
        raise ValueError(f"{name} does not go with the table [auto_mixed_precision] of the scheme")


def _data(job: QuantizeJob, workers: Workers | None) -> CalibrationData | None:
    if job.random_data:
        return CalibrationData((), run=job.run, workers=workers, memory_limit=job.memory_limit)
    data = calibration_data(job, job.run)
    return data and replace(data, workers=workers)


def _phases(scheme: Scheme, job: QuantizeJob) -> list[str]:
    """Return the phases of a job in order."""
    rule, has_data = scheme.auto_mixed_precision, job.data is not None or bool(job.random_data)
    searches = job.min_sqnr is not None or job.top1 is not None
    phases = {
        "loading": True,
        "preparing": True,
        "calibrating": has_data,
        "measuring": has_data and rule is not None,
        "timing": rule is not None and rule.strategy == "latency",
        "trying": has_data and rule is not None,
        "quantizing": rule is None,
        "fitting": has_data and scheme.fits_weights and rule is None,
        "placing": scheme.target == "ort-cpu" and job.time and scheme.keep_float,
        "searching": searches,
        "reloading": scheme.finetune is not None,
        "tuning": scheme.finetune is not None,
        "running": True,
        "comparing": job.data is not None and not job.fast,
        "writing": True,
    }
    return [name for name, is_there in phases.items() if is_there]


def _warnings(work: Work, job: QuantizeJob) -> list[str]:
    """Return a line on numbers that were not those of the application, and one on outputs never compared."""
    lines = [_RANDOM] if job.random_data and work.record.calibrated else []
    if work.data is None and logits_of(work.graph):
        lines += running.unmeasured(work.record.tensors)
    return lines


def _say_why_nothing(job: QuantizeJob, scheme: Scheme) -> None:
    say(f"Nothing to do: no tensor of '{job.input}' can take a format of this scheme.")
    for line in why_nothing(lambda: model_io.load(job.input), scheme.with_(finetune=None)):
        say(f"  {line}")
