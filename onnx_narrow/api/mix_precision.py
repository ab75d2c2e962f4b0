"""Mixed precision."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from onnx_narrow.api.executors import threads_of, workers
from onnx_narrow.api.finish import refuse_untunable, run_steps, untuned
from onnx_narrow.api.keywords import TARGET
from onnx_narrow.api.kinds import FLAG, PATH, TEXTS, Kind, choice, number, whole
from onnx_narrow.api.metrics import place_of
from onnx_narrow.api.result import Result, result_of
from onnx_narrow.api.samples import SampleOptions, open_data
from onnx_narrow.api.schemes import Assignments, Config, SchemeWish, check_effect, mixing_scheme
from onnx_narrow.api.sources import Data, Model, source_of
from onnx_narrow.api.told import Told, Watcher
from onnx_narrow.api.usage import (
    DATA,
    OF_SAMPLES,
    Given,
    Need,
    UsageError,
    check_call,
    given_of,
    listed,
    refuse_own_workers,
    refuse_same_file,
)
from onnx_narrow.api.user_code import check_code
from onnx_narrow.api.written import Output
from onnx_narrow.charts import pareto_plot, plot_file, sensitivity_chart
from onnx_narrow.summaries import mixing
from transforms import model_io
from transforms.files.output_file import check_writable, write_text
from transforms.files.paths import AnyPath
from transforms.files.spelling import spelled
from transforms.pipelines.mix import MixWork, mix, mixed_of
from transforms.pipelines.options import Options
from transforms.pipelines.recipes import MIX
from transforms.pipelines.steps import Step, run
from transforms.pipelines.work import Work
from transforms.precision.mixing_options import MixingOptions
from transforms.run.array_files import read_array
from transforms.run.events import Events
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.mixing_rule import TARGETS as GOALS
from transforms.scheme.targets import TARGETS
from transforms.search.target import LATENCY
from transforms.search.user_metric import UserMetric

KEYS = (
    *("activation_target", "weight_target", "target_op_types", "include_nodes", "exclude_nodes"),
    *("l2_target", "sqnr_target", "sqnr_drop_target", "top1_target", "kl_target", "evaluate_target"),
    *("bits_target", "bytes_target", "size_target", "evaluate", "strategy", "metric", "output_index"),
    *("dual_quant_nodes", "data_size"),
)
"""Keywords that are keys of the table of mixed precision, beside ``target``."""

_MODEL = Need("{output}, not with {analyze_only}", lambda given: "analyze_only" not in given)
_FILES = {"output", "json", "csv", "chart"}
_FILE = Need("{output}, {json}, {csv} or {chart}", lambda given: given.keys() & _FILES)
_WRITTEN = (
    *("bits_target", "bytes_target", "size_target", "strategy", "save_as_external_data", "functions"),
    *("time", "storage", "plot"),
)
_MEASURED = (
    *("json", "csv", "chart", "plot", "analyze_only", "jobs", "dask", "resume", "metric", "output_index"),
    *("data_size", "provider", "memory_limit", "calibration_cache"),
)
_LISTS = ("target_op_types", "include_nodes", "exclude_nodes")
_RESULTS = ("json", "csv", "chart", "plot")

NEEDS: Mapping[str, tuple[Need, ...]] = {
    **OF_SAMPLES,
    **dict.fromkeys(_WRITTEN, (_MODEL,)),
    **dict.fromkeys(_MEASURED, (DATA,)),
    "plot": (_MODEL, DATA),
    "labels": (_MODEL, DATA),
    "force": (
        Need(
            "{output}, {json}, {csv} or {chart}",
            lambda given: given.keys() & {"output", "json", "csv", "chart"},
        ),
    ),
}

_KINDS = {
    **dict.fromkeys(
        ("l2_target", "sqnr_drop_target", "kl_target", "evaluate_target", "bits_target"), number(0)
    ),
    **dict.fromkeys(("bytes_target", "size_target"), whole(most=2**63 - 1)),
    **dict.fromkeys(_LISTS, TEXTS),
    **dict.fromkeys((*_RESULTS, "resume"), PATH),
    "sqnr_target": number(),
    "top1_target": number(0, 1),
    "strategy": choice("speed", "quality", "budget", "latency"),
    "metric": choice("l2", "sqnr", "cosine", "kl", "psnr", "top1", "evaluate"),
    "output_index": whole(-1),
    "data_size": whole(),
    "analyze_only": FLAG,
    "labels": Kind("a path or an array", (str, os.PathLike, np.ndarray, Sequence)),
    "target": TEXTS,
}


def mix_precision(
    model: Model,
    output: AnyPath | None = None,
    *,
    config: Config | None = None,
    data: Data | None = None,
    target: str | Sequence[str] = (),
    activation_target: str | None = None,
    weight_target: str | None = None,
    target_op_types: Sequence[str] | str = (),
    include_nodes: Sequence[str] | str = (),
    exclude_nodes: Sequence[str] | str = (),
    l2_target: float | None = None,
    sqnr_target: float | None = None,
    sqnr_drop_target: float | None = None,
    top1_target: float | None = None,
    kl_target: float | None = None,
    evaluate_target: float | None = None,
    bits_target: float | None = None,
    bytes_target: int | None = None,
    size_target: int | None = None,
    evaluate: UserMetric | str | None = None,
    strategy: str | None = None,
    metric: str | None = None,
    output_index: int | None = None,
    dual_quant_nodes: bool | None = None,
    data_size: int | None = None,
    labels: AnyPath | NDArray[Any] | Sequence[int] | None = None,
    analyze_only: bool = False,
    json: AnyPath | None = None,
    csv: AnyPath | None = None,
    chart: AnyPath | None = None,
    plot: AnyPath | None = None,
    resume: AnyPath | None = None,
    assignments: Assignments = (),
    opset: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    limit: int | None = None,
    image_size: int | Sequence[int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    layout: str | None = None,
    sequences: bool = False,
    states: Mapping[str, str] | None = None,
    feeds_from: Model | None = None,
    feeds: Mapping[str, str] | None = None,
    calibration_cache: AnyPath | None = None,
    storage: str = "plain",
    functions: bool = True,
    save_as_external_data: bool = False,
    force: bool = False,
    time: bool = True,
    provider: str | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    allow_code: bool = False,
    progress: Watcher | Events | None = None,
    steps: Sequence[Step] | None = None,
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
    data : folder, reader, iterable or callable
        Samples, see :data:`onnx_narrow.api.sources.Data`.
    target, activation_target, weight_target : str or list of str
        Formats that layers may get, such as ``"mx6"`` or ``"int8/int4"`` (activation/weight), or for one of
        the two alone; those of the scheme by default. One ``target`` may be the runtime that the model is
        made for.
    target_op_types, include_nodes, exclude_nodes : list of str
        Layers of these operators alone; layers by name or glob.
    l2_target, sqnr_target, sqnr_drop_target, top1_target, kl_target, evaluate_target : float, optional
        The target: a mean over samples of the L2 norm of the outputs' error at most, SQNR in dB at least, dB
        below the baseline, share of rows that become wrong, nats, loss of the function ``evaluate``.
    bits_target, bytes_target, size_target : optional
        Bits per weight, bytes of all weights, or bytes of the file, for ``strategy="budget"``.
    evaluate : callable or str, optional
        A metric of your own, with ``evaluate_target=0.01`` or ``metric="evaluate"``: it gets a list with a
        dict of arrays for each sample, the outputs by name, and returns a number; higher is better. In
        processes (``jobs``) it has to be a function of a file: ``"FILE.py:FUNCTION"``.
    strategy, metric, output_index, dual_quant_nodes, data_size : optional
        How formats are searched, by which metric layers are ranked, which output counts, whether tensors
        between layers of two formats get both, and how many samples errors are measured on.
    labels : path or array of int [rows], optional
        Class numbers of all rows, for ``top1_target``.
    analyze_only : bool
        Measure sensitivities, and make no model.
    json, csv, chart, plot : path, optional
        Files for sensitivities, their chart, and a plot of bits against error.
    resume : path, optional
        A folder that keeps sensitivities for a later call on the same model, data and keywords.

    Returns
    -------
    Result
        Without a model after ``analyze_only``; ``sensitivity`` has what each format does to each layer.

    Raises
    ------
    TypeError, ValueError, OSError
        As :func:`onnx_narrow.quantize`.
    """
    given = given_of(mix_precision, locals())
    _check(given)
    with ExitStack() as stack, Told(progress) as told:
        given["evaluate"] = stack.enter_context(place_of(evaluate))
        wish = wish_of({name: value for name, value in given.items() if value is not None})
        scheme = mixing_scheme(wish, told)
        _check_effect(scheme, wish, given)
        check_code(scheme, wish, told, allow_code=allow_code)
        source = source_of(model)
        where = Output.checked(
            output, source, force=force, external_data=save_as_external_data, functions=functions
        )
        _check_files(given, source.path)
        told.expect(*_phases(scheme, given))
        run_options = RunOptions(provider or "cpu", threads_of(threads or 0, jobs or 1))
        samples = SampleOptions.of(given)
        opened = stack.enter_context(open_data(samples, source, run_options, told))
        shared = stack.enter_context(workers(jobs or 1, dask))
        cache = None if calibration_cache is None else Path(calibration_cache)
        folder = None if resume is None else Path(resume)
        work = MixWork(
            gs.Graph(),
            untuned(scheme),
            opened and replace(opened, cache=cache, memory_limit=memory_limit),
            source=source,
            options=Options(
                run=RunOptions(provider or "cpu", threads or 0),
                times=time,
                storage=storage,
                functions=functions,
                external_data=save_as_external_data,
            ),
            tuning=scheme.finetune,
            events=told,
            mixing=MixingOptions(run_options, shared, folder, _labels(labels), analyze_only),
            recorded=wish.recorded(given),
        )
        refuse_untunable(work)
        results = partial(_write_results, given)
        results.__name__ = "write_results"  # type: ignore[attr-defined]
        taken = MIX if steps is None else tuple(steps)
        after = taken.index(mix) + 1 if mix in taken else len(taken)
        if analyze_only:
            return _analyzed(work, (*taken[:after], results), told)
        return run_steps(work, (*taken[:after], results, *taken[after:]), where, told)


def _check(given: Given) -> None:
    if isinstance(given.get("target"), str) and given["target"] in TARGETS:
        TARGET.check("target", given["target"])
    check_call(given, NEEDS, _KINDS)
    runtimes = _runtimes(given)
    if runtimes[1:]:
        pair = " and ".join(spelled(f"{{target:{name}}}") for name in runtimes[:2])
        raise UsageError(f"{pair}: a model is made for one runtime")
    if not given.get("config") and not runtimes:
        raise UsageError(spelled("{config} is needed: a preset or a scheme"))
    if callable(given.get("evaluate")) and (given.get("jobs", 1) != 1 or given.get("dask")):
        raise ValueError("evaluate is a callable, which other processes do not have: give 'FILE.py:FUNCTION'")
    refuse_own_workers(given)
    refuse_same_file(given, "output", *_RESULTS, "calibration_cache")


def _runtimes(given: Given) -> list[str]:
    """Return the runtimes among the targets, which may be formats, too."""
    return [name for name in listed(given.get("target", ())) if name in TARGETS]


def wish_of(given: Given) -> SchemeWish:
    """Return what keywords say of the scheme and its table of mixed precision."""
    keys = {key: listed(given[key]) if key in _LISTS else given[key] for key in KEYS if key in given}
    if formats := [name for name in listed(given.get("target", ())) if name not in TARGETS]:
        keys["target"] = formats
    return SchemeWish(
        given.get("config"),
        next(iter(_runtimes(given)), ""),
        keys,
        given.get("assignments", ()),
        given.get("opset", 0),
        {name: tuple(shape) for name, shape in given.get("input_shapes", {}).items()},
    )


def _check_effect(scheme: Scheme, wish: SchemeWish, given: Given) -> None:
    """Raise ValueError for a keyword that would do nothing with this scheme."""
    rule = scheme.auto_mixed_precision
    assert rule is not None, "the scheme has the table"
    if "labels" in given and rule.top1_target is None:
        raise ValueError(spelled("{labels} goes with {top1_target}"))
    goals = [key for key in GOALS if key in given]
    if goals and "analyze_only" in given and rule.metric:
        words = spelled(f"{{{goals[0]}}} goes with {{output}}, or without {{metric}}")
        raise ValueError(f"{words}: those use the metric of the target")
    check_effect(scheme, wish, given)


def _check_files(given: Given, source: Path | None) -> None:
    """Raise before any work for a file that cannot be written."""
    force, labels = given.get("force", False), given.get("labels")
    of_labels = Path(labels) if isinstance(labels, str | os.PathLike) else None
    for name in ("json", "csv"):
        if name in given:
            check_writable(Path(given[name]), force=force, inputs=(source, of_labels))
    for name in ("chart", "plot"):
        if name in given:
            plot_file.check_plot(Path(given[name]), force=force)
    if "calibration_cache" in given:
        model_io.check_output(given["calibration_cache"], force=True)


def _labels(labels: AnyPath | NDArray[Any] | Sequence[int] | None) -> NDArray[Any] | None:
    if labels is None:
        return None
    return read_array(Path(labels)) if isinstance(labels, str | os.PathLike) else np.asarray(labels)


def _phases(scheme: Scheme, given: Given) -> Iterator[str]:
    rule, is_timed = scheme.auto_mixed_precision, False
    if rule is not None:
        is_timed = rule.strategy == LATENCY
    yield from ("loading", "preparing")
    if "data" in given:
        yield from ("calibrating", "measuring", "timing" if is_timed else "", "trying")
    if scheme.finetune:
        yield from ("reloading", "tuning")
    if "analyze_only" not in given:
        yield from ("running", "writing")


def _write_results(given: Given, work: Work) -> None:
    """Step: write what was found of layers."""
    mixed = mixed_of(work)
    if mixed is None or mixed.sensitivity is None:
        return
    found, chosen = mixed.sensitivity, mixed.assignment
    times = {key: one.columns for key, one in mixed.layer_times.items()}
    if "json" in given:
        write_text(Path(given["json"]), found.to_json(times))
    if "csv" in given:
        write_text(Path(given["csv"]), found.to_csv(times))
    if "chart" in given:
        sensitivity_chart.draw(found, Path(given["chart"]))
    if "plot" in given and chosen:
        elements = sum(one.weights + one.activations for one in mixed.candidates)
        path = Path(given["plot"])
        pareto_plot.draw(chosen.steps, chosen.target, path, metric=mixed.metric, elements=elements)


def _analyzed(work: MixWork, steps: Sequence[Step], told: Told) -> Result:
    run(work, steps)
    assert work.mixed is not None, "the last step but one makes it"
    for line in mixing.lines(work.mixed):
        told.note(line)
    return result_of(
        None, None, told, scheme=work.scheme, steps=work.record.steps, sensitivity=work.mixed.sensitivity
    )
