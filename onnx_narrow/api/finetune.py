"""Tuning the weights of a quantized model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from onnx_narrow.api.executors import open_workers
from onnx_narrow.api.finetune_rule import recorded, rule_of
from onnx_narrow.api.finish import finish
from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.result import Result
from onnx_narrow.api.samples import SampleOptions, open_data
from onnx_narrow.api.sources import Data, Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked
from onnx_narrow.api.work_options import options_of, run_of
from onnx_narrow.api.written import Output
from onnx_narrow.options.option import Keywords
from onnx_narrow.summaries import running, tuning, work_lines
from onnx_narrow.summaries.precision import reached_lines
from onnx_narrow.summaries.quantize import decided
from onnx_narrow.summaries.timing import beside_lines
from onnx_narrow.summaries.words import Sizes, summed_up
from transforms import model_io
from transforms.files.paths import AnyPath
from transforms.finetune.tuned import TunedModel
from transforms.model import provenance
from transforms.pipelines.check_outputs import UselessError
from transforms.pipelines.first_result import FirstRun
from transforms.pipelines.retune import TUNE, TuneWork
from transforms.pipelines.steps import Steps, phases_of, run
from transforms.pipelines.tune import tuning_options
from transforms.run.events import Events
from transforms.runtime import devices
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.sources import recorded_scheme
from transforms.search.user_metric import UserMetric

log = logging.getLogger("onnx_narrow")


def finetune(
    float_model: Model,
    quantized: Model,
    output: AnyPath | None = None,
    *,
    data: Data,
    algorithm: str = "auto",
    num_iterations: int | None = None,
    learning_rate: float | None = None,
    early_stop: bool = False,
    fixed_seed: int = 0,
    target_op_type: Sequence[str] | str = (),
    selective_update: bool = False,
    following_relu: bool = False,
    full_range: str = "padded",
    output_index: int | None = None,
    limit: int | None = None,
    batch_size: int = 1,
    optim_device: str = "cpu",
    infer_device: str | None = None,
    memory_limit: int | None = None,
    storage: str = "plain",
    image_size: int | Sequence[int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    preprocess: Preprocess | None = None,
    sequences: bool = False,
    states: Mapping[str, str] | None = None,
    feeds_from: Model | None = None,
    feeds: Mapping[str, str] | None = None,
    metric: UserMetric | str | None = None,
    min_metric: float | None = None,
    max_loss: float | None = None,
    time: bool = True,
    provider: str | None = None,
    threads: int | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    resume: AnyPath | None = None,
    force: bool = False,
    save_as_external_data: bool = False,
    functions: bool = True,
    progress: Watcher | Events | None = None,
    steps: Steps | None = None,
) -> Result:
    """Tune the weights of a quantized model by samples.

    Keywords that are not described here are those of :func:`onnx_narrow.quantize`.

    Parameters
    ----------
    float_model, quantized : path, ModelProto or Graph
        The float model, and the model that was quantized from it; neither is changed.
    output : path, optional
        The model to write; without it nothing is written.
    data : folder, file, array, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`; every fifth is held out.
    algorithm : str
        ``"auto"``, ``"gptq"``, ``"coordinate_descent"``, ``"adaquant"`` or ``"adaround"``.
    num_iterations, learning_rate, early_stop : int, float and bool
        Steps for each layer, their size in steps of the grid, and whether to stop where they no longer help;
        of ``"adaquant"`` and ``"adaround"``.
    fixed_seed : int
        Seed for the choice of rows of samples.
    target_op_type : list of str
        Tune only layers of these operators, of Conv, ConvTranspose, Gemm, MatMul.
    selective_update : bool
        Keep a layer only if the outputs of the model improve, too; slower.
    following_relu : bool
        Ignore errors that a Relu or Clip after the layer cuts off.
    full_range : str
        Which int8 tensors that are never negative use the full range: ``"padded"``, ``"free"`` or ``"off"``.
    metric, min_metric, max_loss : optional
        A metric that the tuned model must meet on every second sample, which does not tune: as of
        :func:`onnx_narrow.quantize`; layers are left in float for it.
    output_index : int, optional
        Index of the output to tune for; all by default.
    batch_size : int
        Samples in a run, if the first dimension of inputs is free.
    optim_device, infer_device : str, optional
        ``"cpu"`` (default), ``"cuda:0"`` or ``"hip:0"``, for linear algebra and for inference.
    resume : path, optional
        A folder that keeps tuned layers until the model is written, for a call that goes on after them; not
        with ``selective_update``.
    memory_limit : int, optional
        Bytes for samples, and for tensors between layers; the rest goes to files.
    steps : sequence of rows and functions, optional
        The recipe, instead of ``transforms.pipelines.retune.TUNE``.

    Returns
    -------
    Result
        The model is the quantized one if tuning does not gain beyond its standard error; ``notes`` say so.

    Raises
    ------
    TypeError, ValueError, OSError
        As :func:`onnx_narrow.quantize`.
    """
    keywords = checked("finetune", locals())
    with Told(progress) as told:
        limits = {name: keywords.get(name) for name in ("output_index", "memory_limit")}
        tune_options = tuning_options(rule_of(keywords), _run(keywords), device=optim_device, **limits)
        source, quantized_source = source_of(float_model), source_of(quantized)
        destination = Output.checked(keywords, quantized_source, source)
        samples = SampleOptions.of(keywords, tune_options.run)
        with open_data(samples, source, told) as opened, open_workers(jobs, dask) as shared:
            work = TuneWork(
                gs.Graph(),
                Scheme(activation=FLOAT32, weight=FLOAT32),
                opened and replace(opened, workers=shared),
                source=source,
                options=options_of(keywords),
                events=told,
                quantized=quantized_source,
                how=tune_options,
                batch_size=batch_size,
            )
            recipe = TUNE if steps is None else steps
            told.expect(*phases_of(work, recipe), "writing")
            try:
                run(work, recipe, {"record.tuned": "tune_quantized", "record.first": "try_out"})
            except UselessError as error:
                raise ValueError(work_lines.useless(error.outputs, work)) from error
            return _finish(work, destination, told, keywords)


def _run(keywords: Keywords) -> RunOptions:
    """Return how models run; ValueError for an unavailable device, of inference or linear algebra."""
    devices.array_module(keywords.get("optim_device", devices.CPU))
    device = keywords.get("infer_device", devices.CPU)
    run = run_of(keywords)
    return run if device == devices.CPU else replace(run, provider=devices.provider(device))


def _finish(work: TuneWork, output: Output, told: Told, keywords: Keywords) -> Result:
    """Write the model, and report how it was made."""
    done, first = work.record.tuned, work.record.first
    assert done is not None and first is not None, "it was tuned, and tried out"
    if output.path is not None and work.base.graph is not None:
        model_io.refuse_source(work.base.graph, output.path)  # saving looks at that of the quantized model
    for line in tuning.reasons(done):
        log.info(line)
    broken = tuning.broken_limit(done, keywords.get("memory_limit"))
    warnings = filter(None, (broken, *tuning.poor(done), *running.warnings(first, judged=True)))
    entries = provenance.entries("finetune", recorded(keywords), work.record.source_sha256)
    return finish(
        work,
        output,
        told,
        entries | work.record.metric_entries,
        (lambda sizes: summed_up(_lines(work, done, first, sizes), told.lines), warnings),
        scheme=recorded_scheme(work.graph),
        decided=list(work.record.decisions.tried),
    )


def _lines(work: TuneWork, done: TunedModel, first: FirstRun, sizes: Sizes) -> Iterator[str]:
    yield from work.record.notes
    yield from work.record.stored
    yield from tuning.lines(done, work.fed, sizes, fitted=work.scheme.fit_weights is True)
    yield from reached_lines(work)
    yield from running.kept_lines(first)
    yield from decided(work.record.decisions)
    yield from beside_lines(first.time)
