"""Quantizing a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_graphsurgeon as gs

from onnx_narrow.api.executors import open_workers
from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.quantize_work import (
    OF_SCHEME,
    range_files,
    recipe_of,
    recorded,
    wish_of,
)
from onnx_narrow.api.result import Result
from onnx_narrow.api.run_steps import run_steps, untuned
from onnx_narrow.api.samples import SampleOptions, open_data
from onnx_narrow.api.scheme_needs import check_effect, refuse_beside
from onnx_narrow.api.schemes import Assignments, Config, quantization_scheme
from onnx_narrow.api.sources import Data, Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked
from onnx_narrow.api.work_options import options_of
from onnx_narrow.api.written import Output
from transforms.files.paths import AnyPath
from transforms.moves.improve import Move
from transforms.pipelines.record import JobRecord
from transforms.pipelines.steps import Steps
from transforms.plan.tensor_grids import FixedGrids
from transforms.run.events import Events

if TYPE_CHECKING:
    from transforms.search.user_metric import UserMetric


def quantize(
    model: Model,
    output: AnyPath | None = None,
    *,
    config: Config | None = None,
    data: Data | None = None,
    target: str | None = None,
    calibrate_method: str | None = None,
    per_channel: bool | None = None,
    exclude_nodes: Sequence[str] | str = (),
    exclude_op_types: Sequence[str] | str = (),
    keep_weight_nodes: bool | None = None,
    optimize: bool | None = None,
    domain: str | None = None,
    qdq_domain: str | None = None,
    fast: bool = False,
    effort: str | None = None,
    min_sqnr: float | None = None,
    top1: float | None = None,
    fallback: str | None = None,
    allow_miss: bool = False,
    allow_large: bool = False,
    random_data: int | None = None,
    matmul_nbits: bool = False,
    accuracy_level: int | None = None,
    embeddings: str | None = None,
    kv_cache: str | None = None,
    ranges: AnyPath | None = None,
    export_ranges: AnyPath | None = None,
    time: bool = True,
    assignments: Assignments = (),
    storage: str = "plain",
    limit: int | None = None,
    image_size: int | Sequence[int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    preprocess: Preprocess | None = None,
    sequences: bool = False,
    states: Mapping[str, str] | None = None,
    feeds_from: Model | None = None,
    feeds: Mapping[str, str] | None = None,
    calibration_cache: AnyPath | None = None,
    metric: UserMetric | str | None = None,
    min_metric: float | None = None,
    max_loss: float | None = None,
    provider: str | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    resume: AnyPath | None = None,
    opset: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    allow_code: bool = False,
    force: bool = False,
    save_as_external_data: bool = False,
    functions: bool = True,
    progress: Watcher | Events | None = None,
    steps: Steps | None = None,
    moves: Sequence[Move] | None = None,
) -> Result:
    """Quantize a float model.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The float32 or float16 model; it is not changed.
    output : path, optional
        The model to write; without it nothing is written.
    config : str, path, Scheme or mapping
        A preset such as ``"A8W8"``, the path of a scheme in TOML, a scheme, or its keys; ``"A8W8"`` without a
        target.
    data : folder, file, array, reader, iterable or callable, optional
        Samples, see :data:`onnx_narrow.api.sources.Data`.
    target : str, optional
        The runtime that the model is made for, one of :func:`onnx_narrow.targets`.
    fast : bool
        Let rules choose what is ``"auto"``, and compare no outputs.
    effort : str, optional
        How many runs choices may take: ``"low"``, ``"normal"`` (default) or ``"high"``.
    min_sqnr, top1 : float, optional
        Keep as few layers in the format ``fallback`` as possible for this SQNR in dB of every output, or this
        share of rows (0 to 1) whose largest number moves, on held-out samples; before a final Softmax.
    metric : str or callable, optional
        A metric that held-out samples must meet, with a bound: ``"sqnr"``, ``"top1"``, ``"kl"``,
        ``"cosine"``, ``"f1"``, ``"FILE.py:FUNCTION"`` or a function of the outputs of samples, as
        docs/mixed_precision.md says.
    min_metric, max_loss : float, optional
        The least that the metric may be, or the most by which it may be less than the float model's.
    allow_miss : bool
        Where no choice of layers meets ``min_sqnr``, ``top1`` or ``metric``, take the best that was found,
        whose figure is ``result.metric``.
    allow_large : bool
        Write a model that reaches its target with more than 0.9 of the bytes of the float model.
    fallback : str, optional
        ``"float32"`` (default), ``"int16"`` or ``"bf16"``.
    calibrate_method, per_channel, keep_weight_nodes, optimize, domain, qdq_domain : optional
        Keys of the scheme, instead of those in ``config``: docs/reference/scheme.md.
    exclude_nodes, exclude_op_types : list of str
        Nodes by name or glob, and operator types, that stay in float.
    assignments : mapping, or list of str
        Any other keys of the scheme: ``{"percentile": 99.9}`` or ``["percentile=99.9"]``.
    opset : int, optional
        The opset of the result.
    input_shapes : mapping of str to list of int, optional
        Shapes of inputs by name, which fix free dimensions.
    limit : int, optional
        Read so many samples at most.
    image_size, mean, std, layout : optional
        How image files become inputs: height and width in pixels, numbers by which pixels from 0 to 255 are
        shifted and divided, for each channel or all, and ``"NCHW"`` or ``"NHWC"``.
    preprocess : str or callable, optional
        ``"imagenet"``, ``"mobilenet"`` (-1 to 1) or ``"zero-one"`` in place of mean and std; or a function,
        also as ``"FILE.py:FUNCTION"``, that takes a PIL image and returns an array for the input.
    sequences, states : bool, and mapping of str to str
        Samples are sequences of steps whose states are fed back: inputs and their outputs by name.
    feeds_from, feeds : model, and mapping of str to str
        An encoder that makes inputs of the model, and the input for each of its outputs.
    random_data : int, optional
        Measure ranges on so many random samples instead: for experiments.
    calibration_cache : path, optional
        A file that keeps measured ranges for the same model and samples.
    storage : str
        Weights of block formats as float32 (``"plain"``) or in their bits (``"packed"``).
    matmul_nbits, accuracy_level : bool, and 1 or 4
        Write products with integers in blocks as MatMulNBits of ONNX Runtime, of this level.
    embeddings, kv_cache : str, optional
        Store embeddings, or caches of keys and values, as ``"int8"`` or ``"int4"``; embeddings ``"float"``.
    ranges, export_ranges : path, optional
        Files of scales and zero points to take, and to write.
    functions : bool
        Whether our operators get functions, with which a model needs no library.
    save_as_external_data, force : bool
        Store weights in a file beside the model; replace an existing output.
    time : bool
        Whether the result is timed beside the float model.
    provider, threads : str and int, optional
        Execution provider of ONNX Runtime, by default that of the CPU, and threads, by default all cores.
    memory_limit : int, optional
        Bytes for samples, and for tensors of a sample while ranges are measured.
    jobs, dask : int and str, optional
        Processes that run samples, or the address of a Dask scheduler.
    resume : path, optional
        A folder that keeps layers that are fitted or tuned until the model is written: a call with the same
        model, samples and scheme goes on after them.
    allow_code : bool
        Whether a scheme may run a file outside its folder.
    progress : callable, optional
        Called with the phase, how many pieces are done, and of how many.
    steps : sequence of rows and functions, optional
        The recipe, instead of ``onnx_narrow.QUANTIZE``: rows of that, and functions of a
        :class:`transforms.pipelines.work.Work`.
    moves : sequence of functions, optional
        What the step ``decide`` tries, each a function of a :class:`transforms.moves.improve.Best`, instead
        of ``transforms.pipelines.decide.MOVES``.

    Returns
    -------
    Result
        The model, its scheme, and what was done.

    Raises
    ------
    TypeError, ValueError
        If keywords are of another type, have another value or do not fit, nothing can be quantized, or the
        model cannot be; a ModelError names the node. GateError where no choice of layers meets ``metric``,
        FloatAloneError where only float meets another target.
    OSError
        If a file cannot be read or written.

    Examples
    --------
    >>> import numpy, onnx_narrow
    >>> samples = [numpy.full((2, 1, 8, 8), i / 8, "float32") for i in range(8)]
    >>> result = onnx_narrow.quantize("tests/examples/digits.onnx", config="A8W8", data=samples)
    >>> result.scheme.activation
    'int8'
    """
    keywords = checked("quantize", locals())
    wish = wish_of(keywords)
    with Told(progress) as told:
        requested = quantization_scheme(wish, told)
        scheme = requested.by_rule() if fast else requested
        check_effect(requested, wish, keywords, OF_SCHEME)
        refuse_beside(requested, keywords)
        if allow_code or scheme.auto_mixed_precision:
            from onnx_narrow.api.user_code import check_code  # imports take time that small jobs notice

            check_code(scheme, wish, told, allow_code=allow_code)
        source = source_of(model)
        destination = Output.checked(keywords, source)
        files = range_files(keywords)
        grids = files.read(scheme, keywords, source.path) if files else FixedGrids()
        work_class, recipe = recipe_of(scheme, keywords)
        chooses = scheme.finetune is not None or scheme.auto_mixed_precision is not None
        compares = data is not None and not (fast or ranges or chooses)
        metadata = recorded(wish, keywords)
        samples = SampleOptions.of(keywords)
        with open_data(samples, source, told) as opened, open_workers(jobs, dask) as workers:
            options = options_of(
                keywords, fixed=grids, tuning=scheme.finetune, compares=compares, recorded=metadata
            )
            work = work_class(
                gs.Graph(),
                untuned(scheme),
                opened and replace(opened, workers=workers),
                source=source,
                options=options,
                events=told,
                record=JobRecord(grids=None if export_ranges is None else []),
            )
            return run_steps(work, recipe if steps is None else steps, destination, told, files)
