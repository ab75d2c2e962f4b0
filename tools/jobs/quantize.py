"""What ``tools.quantize`` does once its options are known to be right."""

from __future__ import annotations

import sys
from dataclasses import replace

import onnx_graphsurgeon as gs

from tools.cli.executors import open_workers
from tools.cli.needs import Need
from tools.cli.progress import Phases
from tools.cli.scheme_options import BLOCKS, CALIBRATION, check_effect, quantization_scheme
from tools.cli.user_code import check_code
from tools.jobs import ranges
from tools.jobs.load import load_model
from tools.jobs.quantize_options import QuantizeJob
from tools.jobs.quantized import Made, calibration_data, finish, mix_model, phases_of
from tools.summaries import mixing, running
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError
from transforms.graph import walk
from transforms.graph.some_names import counted
from transforms.judge.budget import MOST_NODES, has_many_nodes
from transforms.mix_precision.mix import MixingOptions
from transforms.pipelines.check_outputs import check_outputs
from transforms.pipelines.float_reference import float_reference
from transforms.pipelines.quantize_graph import Quantized, quantize_graph
from transforms.pipelines.why_nothing import why_nothing
from transforms.plan.tensor_grids import FixedGrids
from transforms.run.feeds import random_feeds
from transforms.run.workers import Workers
from transforms.runtime.inputs import model_inputs
from transforms.scheme import Scheme
from transforms.write_matmul_nbits import write_matmul_nbits

_SHARED = Need(
    f"{CALIBRATION.words} or a table [finetune]",
    lambda scheme: CALIBRATION.is_met(scheme) or scheme.finetune is not None,
)
_RANDOM = "Warning: ranges come from random numbers; the result shows that the model runs, not its accuracy"


def quantize_file(job: QuantizeJob) -> bool:
    """Quantize ``job.input`` to ``job.output`` and print a summary; return False if nothing was to be done.

    Raises ValueError or OSError; nothing is written then, nor where nothing is done.
    """
    with open_workers(job) as workers:
        return _quantize_file(job, workers)


def _quantize_file(job: QuantizeJob, workers: Workers | None) -> bool:
    asked = quantization_scheme(job)
    scheme = asked.by_rule() if job.fast else asked
    if job.print_config:
        print(scheme.to_toml(), end="")
    if not job.input:
        return True
    of_tool = {"matmul_nbits": BLOCKS}
    check_effect(asked, job, {**dict.fromkeys(("jobs", "dask"), _SHARED), **of_tool})
    check_code(scheme, job)
    external = job.save_as_external_data
    output = model_io.check_output(job.output, job.input, force=job.force, external_data=external)
    fixed = ranges.read(job, scheme)
    if job.calibration_cache:
        model_io.check_output(job.calibration_cache, force=True)
    measures, has_data = _measures(scheme, job), job.data is not None or bool(job.random_data)
    phases = phases_of(scheme, has_data=has_data, compares=measures)
    with phases("loading"):
        graph = load_model(job.input, scheme)
    measures = measures and _may_run(graph, scheme)
    data = _data(graph, job, workers)
    made = _make(graph, scheme, data, phases, fixed, job, keep_float=measures)
    if not made.done.count:
        print(f"Nothing to do: no tensor of '{job.input}' can take a format of this scheme.")
        for line in why_nothing(lambda: model_io.load(job.input), scheme.with_(finetune=None)):
            print(f"  {line}")
        return False
    judged = data is not None and measures
    if data is not None and measures:
        with phases("comparing"):
            outputs = check_outputs(made.float_graph(), graph, data, made.done.record)
        for line in running.poor(outputs.error, outputs.where, job.config) if outputs else ():
            print(line, file=sys.stderr)
    recorded = {"config": job.config, "random_data": job.random_data}
    grids = list(made.done.grids or ())
    finish(
        made,
        scheme,
        output,
        recorded,
        job,
        phases,
        workers,
        _write_nbits if job.matmul_nbits else None,
        judged=judged,
        beside=ranges.writing(job, grids),
    )
    for line in ranges.line(job, grids):
        print(line)
    if job.random_data and made.done.calibrated:
        print(_RANDOM, file=sys.stderr)
    return True


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
        made = Made.of(mix_model(graph, scheme, data, MixingOptions(job.run), phases))
        for line in mixing.lines(made.mixed) if made.mixed else ():
            print(line)
        return made
    keeps_grids = job.export_ranges is not None
    done = _quantize(graph, scheme, data, phases, fixed, keep_float=keep_float, keep_grids=keeps_grids)
    used = (done.scheme or scheme).with_(finetune=scheme.finetune)
    floats = done.float_graph
    return Made(
        graph, done, used, lambda: floats or float_reference(lambda: model_io.load(job.input), graph, used)
    )


def _write_nbits(graph: gs.Graph) -> None:
    count = write_matmul_nbits(graph)
    left = sum(node.op == "DequantizeLinear" and "block_size" in node.attrs for node in walk.nodes(graph))
    others = f", {counted(left, 'weight')} in blocks with DequantizeLinear" if left else ""
    print(f"Written as MatMulNBits: {counted(count, 'product')}{others}")


def _measures(scheme: Scheme, job: QuantizeJob) -> bool:
    """Return whether outputs are looked at: tuning and mixed precision do that themselves.

    Ranges that are given are not to be changed by it.
    """
    does_itself = scheme.finetune is not None or scheme.auto_mixed_precision is not None
    return job.data is not None and not (job.fast or job.ranges or does_itself)


def _may_run(graph: gs.Graph, scheme: Scheme) -> bool:
    """Return whether opening the quantized model takes little time; print a line if not."""
    if not has_many_nodes(graph):
        return True
    print(f"Outputs not compared: more than {MOST_NODES:,} nodes; tools.evaluate compares them")
    return False


def _quantize(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None,
    phases: Phases,
    fixed: FixedGrids,
    **keep: bool,
) -> Quantized:
    try:
        with phases("preparing") as bar:
            show = bar.shows("calibrating", "sample", then="quantizing")
            fit = bar.shows("fitting", "layer")
            return quantize_graph(
                graph, _untuned(scheme), data, progress=show, layer_progress=fit, fixed=fixed, **keep
            )
    except MissingDataError as error:
        hint = "give --data DIR, or --random-data N for an experiment"
        raise ValueError(f"{error}: {hint}") from error


def _untuned(scheme: Scheme) -> Scheme:
    """Return the scheme without tuning, which chooses scales itself unless the scheme asks for them."""
    fits = scheme.fit_scales if scheme.finetune is None else scheme.fit_scales is True
    return scheme.with_(finetune=None, fit_scales=fits)


def _data(graph: gs.Graph, job: QuantizeJob, workers: Workers | None) -> CalibrationData | None:
    if job.random_data:
        feeds = random_feeds(model_inputs(graph), job.random_data)
        return CalibrationData(
            feeds, run=job.run, workers=workers, memory_limit=job.memory_limit, decides=False
        )
    data = calibration_data(job, job.run)
    return data and replace(data, workers=workers)
