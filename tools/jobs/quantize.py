"""What ``tools.quantize`` does once its options are known to be right."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import onnx_graphsurgeon as gs

from tools.cli.executors import open_workers
from tools.cli.needs import Need
from tools.cli.progress import BarEvents, Phases
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
from tools.jobs import ranges, reach
from tools.jobs.compared import Comparison, changed_last
from tools.jobs.load import apart_from_embeddings, load_for
from tools.jobs.place import Quantize, find_layers, places
from tools.jobs.quantize_options import QuantizeJob
from tools.jobs.quantized import Finished, Made, calibration_data, finish, mix_model, phases_of
from tools.jobs.runtime_form import write_for_runtime
from tools.summaries import mixing, running
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.conversion.float_reference import float_reference
from transforms.conversion.record import Record
from transforms.graph.embeddings import logits_of, tables
from transforms.judge.budget import MOST_NODES, has_many_nodes, too_large
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.pipelines.steps import IN_MEMORY, run
from transforms.pipelines.why_nothing import why_nothing
from transforms.pipelines.work import Work
from transforms.plan.tensor_grids import FixedGrids
from transforms.precision.held_out import HeldOut
from transforms.precision.mix import MixingOptions
from transforms.run.feeds import random_feeds
from transforms.run.workers import Workers
from transforms.runtime.inputs import model_inputs
from transforms.scheme import Scheme

_SHARED = Need(
    f"{CALIBRATION.words} or a table [finetune]",
    lambda scheme: CALIBRATION.is_met(scheme) or scheme.finetune is not None,
)
_RANDOM = "Warning: ranges come from random numbers; the result shows that the model runs, not its accuracy"


def print_config(job: QuantizeJob) -> None:
    """Say the scheme of a job, with all keys."""
    _say_config(_schemes(job)[1])


def quantize_file(job: QuantizeJob) -> Finished | None:
    """Quantize ``job.input`` to ``job.output`` and say what was done; None if nothing was to be done.

    Says the scheme first if the job asks for that. Raises ValueError or OSError; nothing is written then, nor
    where nothing is done.
    """
    with unrolled(job, job.input) as own, open_workers(own) as workers:
        return _quantize_file(own, workers)


def _schemes(job: QuantizeJob) -> tuple[Scheme, Scheme]:
    """Return the scheme that is asked for, and the one that is followed."""
    asked = quantization_scheme(job)
    return asked, asked.by_rule() if job.fast else asked


def _say_config(scheme: Scheme) -> None:
    say(scheme.to_toml().removesuffix("\n"))


def _quantize_file(job: QuantizeJob, workers: Workers | None) -> Finished | None:
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
    measures, has_data = _measures(scheme, job), job.data is not None or bool(job.random_data)
    searches = reach.target_of(job) is not None
    is_placed = measures and places(job, scheme)
    compares = job.data is not None and not job.fast
    phases = phases_of(scheme, has_data=has_data, compares=compares, searches=searches, places=is_placed)
    with phases("loading"):
        graph = load_for(job, scheme)
    asked, scheme = scheme, apart_from_embeddings(graph, scheme) if job.embeddings else scheme
    may_run = not (measures or changed_last(job)) or _may_run(graph)
    measures = measures and may_run
    is_unmeasured = not has_data and bool(logits_of(graph))
    is_placed = is_placed and measures and not too_large(graph)
    data = _data(graph, job, workers)
    apart = reach.held_out(job, scheme, data, graph)
    data = apart.data if apart else data
    data = data.repeatable(graph) if data and is_placed else data
    made = _make(graph, scheme, data, phases, fixed, job, keep_float=measures or searches)
    if not (made.done.count or (job.embeddings and tables(made.graph))):
        _say_why_nothing(job, scheme)
        return None
    again = partial(_again, scheme, job)
    if data is not None and is_placed:
        made = _placed(made, again, data, job, phases)
    if apart:
        made = _reached(made, again, apart, job, phases)
    keys = {"keys": dict(job.changes)} if job.changes else {}
    recorded = {**recorded_options(job), **keys, "random_data": job.random_data}
    grids = list(made.done.grids or ())
    finished = finish(
        made,
        scheme,
        output,
        recorded,
        job,
        phases,
        workers,
        partial(write_for_runtime, job, asked),
        compare=Comparison(job, data, apart, measures) if data and compares and may_run else None,
        beside=ranges.writing(job, grids),
    )
    for line in ranges.line(job, grids):
        say(line)
    if job.random_data and made.done.calibrated:
        warn(_RANDOM)
    if is_unmeasured:
        for line in running.unmeasured(made.done.tensors):
            warn(line)
    return finished


def _say_why_nothing(job: QuantizeJob, scheme: Scheme) -> None:
    say(f"Nothing to do: no tensor of '{job.input}' can take a format of this scheme.")
    for line in why_nothing(lambda: model_io.load(job.input), scheme.with_(finetune=None)):
        say(f"  {line}")


def _make(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    phases: Phases,
    fixed: FixedGrids,
    job: QuantizeJob,
    *,
    keep_float: bool,
) -> Made:
    """Return the quantized model; ``keep_float``: tensors may stay float if its outputs are better for it."""
    if scheme.auto_mixed_precision:
        made = Made.of(mix_model(graph, scheme, data, MixingOptions(job.run), job, phases))
        for line in mixing.lines(made.mixed) if made.mixed else ():
            say(line)
        return made
    keeps_grids = job.export_ranges is not None
    done, floats = _quantize(
        graph, scheme, data, phases, fixed, keep_float=keep_float, keep_grids=keeps_grids
    )
    used = (done.scheme or scheme).with_(finetune=scheme.finetune)
    return Made(graph, done, used, (lambda: floats) if floats else partial(_float_form, job, graph, used))


def _float_form(job: QuantizeJob, graph: gs.Graph, used: Scheme) -> gs.Graph:
    """Return the float model in the form that was quantized."""
    return float_reference(lambda: model_io.load(job.input), graph, used)


def _again(asked: Scheme, job: QuantizeJob, graph: gs.Graph, scheme: Scheme, data: CalibrationData) -> Record:
    """Quantize a float model in place by a scheme in which nothing is open."""
    wish = scheme.with_(full_range=asked.full_range)  # layers that are finer leave others to shift
    return quantize_graph(graph, wish, data, keep_grids=job.export_ranges is not None)


def _placed(made: Made, again: Quantize, data: CalibrationData, job: QuantizeJob, phases: Phases) -> Made:
    """Return the model with the layers in float that are faster so here; ``data`` have to be repeatable."""
    with phases("placing"):
        found = find_layers((made.graph, made.scheme), made.float_graph, again, data, job)
        if found is None or not found.layers:
            return replace(made, placed=found is not None)
        graph = load_for(job, made.scheme)
        done = again(graph, found.scheme, data)
    used = done.scheme or found.scheme
    done = replace(done, decisions=made.done.decisions)
    return Made(graph, done, used, partial(_float_form, job, graph, used), placed=True)


def _reached(made: Made, again: Quantize, apart: HeldOut, job: QuantizeJob, phases: Phases) -> Made:
    """Return the model with as few finer layers as its target takes."""
    first = made.graph, made.done, made.scheme

    def _build(graph: gs.Graph, scheme: Scheme) -> Record:
        return again(graph, scheme, apart.data)

    graph, done, used = reach.reached(first, made.float_graph, _build, apart, job, phases)
    if graph is made.graph:
        return made
    return replace(
        made, graph=graph, done=done, scheme=used, float_graph=partial(_float_form, job, graph, used)
    )


def _measures(scheme: Scheme, job: QuantizeJob) -> bool:
    """Return whether outputs are looked at: tuning and mixed precision do that themselves.

    Ranges that are given are not to be changed by it.
    """
    does_itself = scheme.finetune is not None or scheme.auto_mixed_precision is not None
    return job.data is not None and not (job.fast or job.ranges or does_itself)


def _may_run(graph: gs.Graph) -> bool:
    """Return whether opening the quantized model takes little time; print a line if not."""
    if not has_many_nodes(graph):
        return True
    say(f"Outputs not compared: more than {MOST_NODES:,} nodes; tools.evaluate compares them")
    return False


def _quantize(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    phases: Phases,
    fixed: FixedGrids,
    *,
    keep_float: bool,
    keep_grids: bool,
) -> tuple[Record, gs.Graph | None]:
    try:
        with phases("preparing") as bar:
            record = Record(grids=[] if keep_grids else None)
            work = Work(
                graph, _untuned(scheme), data, fixed, keep_float, events=BarEvents(bar), record=record
            )
            run(work, IN_MEMORY)
            return record, work.float_graph if keep_float else None
    except MissingDataError as error:
        hint = "give --data DIR, or --random-data N for an experiment"
        raise ValueError(f"{error}: {hint}") from error


def _untuned(scheme: Scheme) -> Scheme:
    """Return the scheme without tuning, which rounds weights itself unless ``fit_weights`` is asked for."""
    fits = scheme.fit_weights if scheme.finetune is None else scheme.fit_weights is True
    return scheme.with_(finetune=None, fit_weights=fits)


def _data(graph: gs.Graph, job: QuantizeJob, workers: Workers | None) -> CalibrationData | None:
    if job.random_data:
        feeds = random_feeds(model_inputs(graph), job.random_data)
        return CalibrationData(
            feeds, run=job.run, workers=workers, memory_limit=job.memory_limit, decides=False
        )
    data = calibration_data(job, job.run)
    return data and replace(data, workers=workers)
