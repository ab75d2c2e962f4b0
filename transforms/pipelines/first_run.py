"""Run a model once before it is saved, as its users will, and compare it with the float model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms import features, model_io
from transforms.deploy.rounded_inputs import rounded_inputs
from transforms.deploy.saturating_products import saturating_products
from transforms.files.runtime_message import said_by_runtime
from transforms.graph.number_shapes import judged_tensors
from transforms.model.bounds import refuse_unreadable
from transforms.model.read_model import ModelError
from transforms.model_io import Exported
from transforms.pipelines.first_faults import fault, is_of_the_float_model, useless
from transforms.pipelines.first_result import FirstRun
from transforms.pipelines.float_runs import (
    MOST_AT_ONCE,
    FloatRun,
    FloatRuns,
    Made,
    Samples,
    run_float,
)
from transforms.pipelines.one_step import is_large, run_one_step, why_not_opened
from transforms.pipelines.source import Source
from transforms.runtime.compare_runs import not_repeatable
from transforms.runtime.inputs import ModelInput, check_feed, model_inputs, taken_shape, two_sizes
from transforms.runtime.processor import sums_saturate
from transforms.runtime.session import RunOptions, why_not_on_cpu
from transforms.runtime.trial import Case, Outputs, try_model, try_once

_MOST_KEPT = 16
"""Most nodes that are left in float before a model is refused: finding one takes twenty sessions."""


@dataclass(frozen=True)
class FirstRunOptions:
    """Options of the first run.

    ``source``: the float model. Without ``samples``, inputs are random numbers. ``functions``: whether custom
    operators are exported with functions. ``mends``: whether nodes that the runtime computes wrongly are left
    in float, and the model is refused if that does not help; else, for a model made for another runtime, the
    fault is only reported.
    """

    source: Source
    samples: Samples | None = None
    functions: bool = True
    mends: bool = True
    threads: int = 0


def first_run(graph: gs.Graph, options: FirstRunOptions) -> FirstRun:
    """Export a graph and run it once, and again for other sizes if dimensions of inputs are free.

    A large model is run for one step only (:mod:`transforms.pipelines.one_step`).

    A node that ONNX Runtime computes wrongly when it optimizes the model is left in float, in the graph, but
    not if 8-bit sums saturate because the scheme allows it. Raises ModelError, naming node and reason, for a
    model that does not run although the float model does, that is still computed wrongly, or that no tool
    could read; the model is then not to be saved.
    """
    exported = _export(graph, options)
    refuse_unreadable(*exported)
    stored = options.source.stored_bytes(graph)
    large = is_large(exported, stored)
    result = FirstRun(exported, why_not_on_cpu(*exported), why_not_opened(exported, stored) if large else "")
    if result.why_not is not None or result.not_run:
        return result
    # a session for a single run: neither spinning threads nor an arena pay
    run = RunOptions(threads=options.threads, spin=False, arena=False)
    try:
        inputs = model_inputs(graph)
    except ModelError as error:  # bfloat16, for example, or a sequence
        return replace(result, not_run=str(error))
    quantized = Made(graph, exported[0].graph)
    try:
        if large:
            floats = FloatRuns(run_one_step(options.source, options.samples, inputs, quantized, run), 0)
            result.once = floats.first.sizes
        else:
            floats = run_float(options.source, options.samples, inputs, quantized, run)
    except Exception as error:  # of the runtime, which shares no narrower class, and on the float model
        return replace(result, not_run=f"the float model does not run: {said_by_runtime(error)}")
    # the float model has run: now the model on the same feeds
    result.sample, result.fixed = floats.first.sample, floats.fixed
    if floats.at_once > MOST_AT_ONCE:
        reason = f"its tensors take {floats.at_once:,} bytes at once, more than {MOST_AT_ONCE:,}"
        return replace(result, not_run=reason)
    return _run_beside(graph, result, floats, inputs, run, options)


def _run_beside(
    graph: gs.Graph,
    result: FirstRun,
    floats: FloatRuns,
    inputs: Sequence[ModelInput],
    run: RunOptions,
    options: FirstRunOptions,
) -> FirstRun:
    """Run the model on those feeds of the float model that fit its inputs."""
    try:
        feed = _fed(graph, inputs, floats.first)
    except ValueError:
        return replace(result, not_run=f"{result.sample} has other shapes than its inputs")
    result.feeds = feed, floats.first.feed
    comparable = _comparable(graph, result.exported[0])
    cases, pairs = [Case(feed, _of(comparable, floats.first))], [floats.first]
    for other in floats.others:
        try:
            cases.append(Case(_fed(graph, inputs, other), _of(comparable, other), other.sample))
        except ValueError:  # it has other shapes, too
            result.fixed.append(other.sizes)
        else:
            pairs.append(other)
    try:
        return _run(graph, result, cases, pairs, run, options)
    except TimeoutError as error:
        return replace(result, not_run=str(error))
    except ModelError as error:
        if result.trial is None and any(judged != [name] for name, judged in judged_tensors(graph).items()):
            return replace(result, not_run=f"it fails on {result.sample}: {error}")
        if sizes := two_sizes({tensor.name: tensor.shape for tensor in graph.inputs}, feed):
            raise ModelError(f"{result.sample}: {sizes}") from error
        raise


def _fed(graph: gs.Graph, inputs: Sequence[ModelInput], reference: FloatRun) -> dict[str, AnyArray]:
    """Return the feed of the float model in the form of the inputs; ValueError if it does not fit."""
    view = features.view_of(graph)
    source = reference.feed if view is None else view.fed(reference.feed)
    pairs = [(tensor, source[tensor.name]) for tensor in inputs]
    feed = {
        tensor.name: array.astype(tensor.dtype, copy=False).reshape(taken_shape(tensor, array))
        for tensor, array in pairs
    }
    check_feed(inputs, feed, reference.sample)
    return feed


def _of(names: Collection[str], reference: FloatRun) -> Outputs:
    return {name: array for name, array in reference.outputs.items() if name in names}


def _run(
    graph: gs.Graph,
    result: FirstRun,
    cases: list[Case],
    pairs: list[FloatRun],
    run: RunOptions,
    options: FirstRunOptions,
) -> FirstRun:
    """Run the model on cases, paired with runs of the float model, until no node has to be left in float."""
    light = result.exported[0].graph
    contradiction = "" if result.has_sample else Made(graph, light).contradiction(pairs[0].outputs)
    attempt = try_model if result.once is None else try_once
    while True:
        trials = attempt(*result.exported, cases, run)
        if result.saturated and any(trial.failure for trial in trials):
            result.trial = result.saturated  # ONNX Runtime 1.32 widens no weight that nodes share
            return result
        result.trial = trials[0]
        broken = next((place for place, trial in enumerate(trials) if trial.failure or trial.wrong), None)
        if broken is None:
            # no node is wrong; at other sizes an output may still be of no use
            if reason := useless(cases, trials):
                raise ModelError(reason)
            return result
        if contradiction:
            return replace(result, trial=None, sample="", not_run=contradiction)
        if broken and is_of_the_float_model(options.source, pairs[broken], run):
            result.fixed.append(pairs[broken].sizes)
            del cases[broken], pairs[broken]
            continue
        # session options may prevent the fault: the first run then records both results
        if rounded_inputs(graph) and not run.full_inputs:
            run, result.rounded = replace(run, full_inputs=True), result.trial
            continue
        saturates = trials[broken].wrong and sums_saturate() and saturating_products(graph)
        if saturates and not run.exact_sums:  # by saturation = "ignore", or made for another runtime
            run, result.saturated = replace(run, exact_sums=True), result.trial
            continue
        reason, faulty = fault(result.exported, cases[broken], trials[broken], run)
        if not options.mends:
            return replace(result, wrong=[reason])
        from transforms.leave_float import leave_float  # rarely needed

        if len(result.kept) == _MOST_KEPT or not leave_float(graph, faulty):
            raise ModelError(reason)
        result.kept.append(reason)
        result.exported = _export(graph, options)


def _comparable(graph: gs.Graph, light: onnx.ModelProto) -> Collection[str]:
    """Return the names of outputs whose elements correspond to those of the float model.

    There are none if the model draws random numbers; outputs whose number of rows depends on values are left
    out.
    """
    if not_repeatable(light.graph):
        return ()
    return {name for name, judged in judged_tensors(graph).items() if judged == [name]}


def _export(graph: gs.Graph, options: FirstRunOptions) -> Exported:
    light, weights = model_io.export(graph)
    if options.functions:
        model_io.attach_own(light)
    return light, weights
