"""Mixed precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import onnx_graphsurgeon as gs
from numpy.typing import ArrayLike

from onnx_narrow.api.executors import threads_of, workers
from onnx_narrow.api.image_keywords import Preprocess
from onnx_narrow.api.metrics import place_of
from onnx_narrow.api.mix_work import (
    analyzed,
    check_files,
    check_keywords,
    check_mixing,
    wish_of,
    write_results,
)
from onnx_narrow.api.result import Result
from onnx_narrow.api.run_steps import run_steps, untuned
from onnx_narrow.api.samples import SampleOptions, labels_in, open_data
from onnx_narrow.api.schemes import Assignments, Config, mixing_scheme
from onnx_narrow.api.sources import Data, Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import checked
from onnx_narrow.api.user_code import check_code
from onnx_narrow.api.work_options import options_of, run_of
from onnx_narrow.api.written import Output
from transforms.conversion.rows import Row, as_rows
from transforms.files.paths import AnyPath
from transforms.pipelines.mix import MIX, MixWork
from transforms.pipelines.steps import Steps
from transforms.pipelines.work import WorkRow
from transforms.precision.mixing_options import MixingOptions
from transforms.run.events import Events
from transforms.search.user_metric import UserMetric


def mix_precision(
    model: Model,
    output: AnyPath | None = None,
    *,
    config: Config | None = None,
    data: Data | None = None,
    target: Sequence[str] | str = (),
    activation_target: str | None = None,
    weight_target: str | None = None,
    target_op_types: Sequence[str] | str = (),
    exclude_nodes: Sequence[str] | str = (),
    l2_target: float | None = None,
    sqnr_target: float | None = None,
    sqnr_drop_target: float | None = None,
    top1_target: float | None = None,
    kl_target: float | None = None,
    evaluate_target: float | None = None,
    bits_target: float | None = None,
    size_target: int | None = None,
    evaluate: UserMetric | str | None = None,
    output_index: int | None = None,
    dual_quant_nodes: bool | None = None,
    labels: AnyPath | ArrayLike | None = None,
    analyze_only: bool = False,
    json: AnyPath | None = None,
    csv: AnyPath | None = None,
    chart: AnyPath | None = None,
    plot: AnyPath | None = None,
    jobs: int | None = None,
    resume: AnyPath | None = None,
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
    time: bool = True,
    provider: str | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    dask: str | None = None,
    opset: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    allow_code: bool = False,
    force: bool = False,
    save_as_external_data: bool = False,
    functions: bool = True,
    progress: Watcher | Events | None = None,
    steps: Steps | None = None,
) -> Result:
    """Give layers cheaper formats as far as a target for the outputs allows.

    Keywords that are not described here are those of :func:`onnx_narrow.quantize`.

    Parameters
    ----------
    model : path, ModelProto or Graph
        The float model; it is not changed.
    output : path, optional
        The model to write; without it nothing is written.
    config : str, path or Scheme
        The baseline: a preset such as ``"S16S8_MIXED_S8S8"`` or ``"BF16"``, or a scheme.
    data : folder, file, array, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`.
    target, activation_target, weight_target : str or list of str
        Formats that layers may get, such as ``"mx6"`` or ``"int8/int4"`` (activation/weight), or for one of
        the two alone; those of the scheme by default. One ``target`` may be the runtime that the model is
        made for.
    target_op_types, exclude_nodes : list of str
        Layers of these operators alone; layers by name or glob that stay as they are.
    l2_target, sqnr_target, sqnr_drop_target, top1_target, kl_target, evaluate_target : float, optional
        The target: a mean over samples of the L2 norm of the outputs' error at most, SQNR in dB at least, dB
        below the baseline, share of rows that become wrong, nats, loss of the function ``evaluate``.
    bits_target, size_target : optional
        A budget: mean bits of a weight, or bytes of the file.
    evaluate : callable or str, optional
        A metric of your own, with ``evaluate_target=0.01``: it gets a list with a dict of arrays for each
        sample, the outputs by name, and returns a number; higher is better. In processes (``jobs``) it has to
        be a function of a file: ``"FILE.py:FUNCTION"``.
    metric : str or callable, optional
        With ``min_metric`` or ``max_loss`` the metric that the model has to keep to on samples that did not
        search, as of :func:`onnx_narrow.quantize`.
    output_index, dual_quant_nodes : optional
        Which output counts, and whether tensors between layers of two formats get both.
    labels : path or array of int [rows], optional
        Class numbers of all rows, for ``top1_target``.
    analyze_only : bool
        Measure sensitivities, and make no model.
    json, csv, chart, plot : path, optional
        Files for sensitivities, their chart, and a plot of bits against error.
    resume : path, optional
        A folder that keeps sensitivities for a later call on the same model, data and keywords, and layers
        that are fitted or tuned until the model is written.

    Returns
    -------
    Result
        Without a model after ``analyze_only``; ``sensitivity`` has what each format does to each layer.

    Raises
    ------
    TypeError, ValueError, OSError
        As :func:`onnx_narrow.quantize`.
    """
    keywords = checked("mix_precision", locals())
    check_keywords(keywords)
    with ExitStack() as stack, Told(progress) as told:
        if evaluate is not None:
            keywords["evaluate"] = stack.enter_context(place_of(evaluate))
        wish = wish_of(keywords)
        scheme = mixing_scheme(wish, told)
        check_mixing(scheme, wish, keywords)
        check_code(scheme, wish, told, allow_code=allow_code)
        source = source_of(model)
        destination = Output.checked(keywords, source)
        check_files(keywords, source.path)
        run = replace(run_of(keywords), threads=threads_of(threads or 0, jobs or 1))
        opened = stack.enter_context(open_data(SampleOptions.of(keywords, run), source, told))
        shared = stack.enter_context(workers(jobs or 1, dask))
        work = MixWork(
            gs.Graph(),
            untuned(scheme),
            opened,
            source=source,
            options=options_of(keywords, tuning=scheme.finetune, recorded=wish.recorded(keywords)),
            events=told,
            mixing=MixingOptions(run, shared, keywords.get("resume"), labels_in(keywords), analyze_only),
        )
        results = partial(write_results, keywords)
        results.__name__ = "write_results"  # type: ignore[attr-defined]
        rows: Sequence[WorkRow] = as_rows(MIX if steps is None else steps)
        names = [row.name for row in rows]
        after = names.index("mix") + 1 if "mix" in names else len(names)
        if analyze_only:
            return analyzed(work, (*rows[:after], Row(results)), told)
        return run_steps(work, (*rows[:after], Row(results), *rows[after:]), destination, told)
