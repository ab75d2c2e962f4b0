"""The first run of a model, before its file gets its name: as its users run it, against the float model."""

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
"""Nodes left in float before a model is refused: each takes twenty sessions to find."""


@dataclass(frozen=True)
class FirstRunOptions:
    """How a model is run for the first time.

    ``source``: the float model. Without ``samples`` random numbers are fed. ``functions``:
    whether operators of ours get them. ``mends``: nodes that the runtime computes wrongly are left in float,
    or the model is refused; else, for a model that is made for another runtime, it is said.
    """

    source: Source
    samples: Samples | None = None
    functions: bool = True
    mends: bool = True
    threads: int = 0


def first_run(graph: gs.Graph, options: FirstRunOptions) -> FirstRun:
    """Export a graph, and run it once before it is saved, and once more where sizes of inputs are free.

    A large model is run for one step alone (:mod:`transforms.pipelines.one_step`).

    A node that ONNX Runtime computes wrongly when it optimizes the model is left in float, in the graph, but
    not where sums of weights saturate that were made without regard to that.
    Raises ModelError, naming node and reason, for a model that does not run although the float model does,
    or that is computed wrongly all the same, or that no tool could read; nothing is saved then.
    """
    exported = _export(graph, options)
    refuse_unreadable(*exported)
    stored = options.source.stored_bytes(graph)
    large = is_large(exported, stored)
    found = FirstRun(exported, why_not_on_cpu(*exported), why_not_opened(exported, stored) if large else "")
    if found.why_not is not None or found.not_run:
        return found
    run = RunOptions(threads=options.threads, spin=False, arena=False)  # for one run neither pays
    try:
        inputs = model_inputs(graph)
    except ModelError as error:  # bfloat16, for example, or a sequence
        return replace(found, not_run=str(error))
    made = Made(graph, exported[0].graph)
    try:
        if large:
            floats = FloatRuns(run_one_step(options.source, options.samples, inputs, made, run), 0)
            found.once = floats.first.sizes
        else:
            floats = run_float(options.source, options.samples, inputs, made, run)
    except Exception as error:  # of the runtime, which shares no narrower class, and on the float model
        return replace(found, not_run=f"the float model does not run: {said_by_runtime(error)}")
    found.sample, found.fixed = floats.first.sample, floats.fixed
    if floats.at_once > MOST_AT_ONCE:
        taken = f"its tensors take {floats.at_once:,} bytes at once, more than {MOST_AT_ONCE:,}"
        return replace(found, not_run=taken)
    return _run_beside(graph, found, floats, inputs, run, options)


def _run_beside(
    graph: gs.Graph,
    found: FirstRun,
    floats: FloatRuns,
    inputs: Sequence[ModelInput],
    run: RunOptions,
    options: FirstRunOptions,
) -> FirstRun:
    """Run the model on the feeds of the float model, as far as they fit its inputs."""
    try:
        feed = _fed(graph, inputs, floats.first)
    except ValueError:
        return replace(found, not_run=f"{found.sample} has other shapes than its inputs")
    found.feeds = feed, floats.first.feed
    known = _comparable(graph, found.exported[0])
    cases, pairs = [Case(feed, _of(known, floats.first))], [floats.first]
    for other in floats.others:
        try:
            cases.append(Case(_fed(graph, inputs, other), _of(known, other), other.sample))
        except ValueError:  # the same
            found.fixed.append(other.sizes)
        else:
            pairs.append(other)
    try:
        return _run(graph, found, cases, pairs, run, options)
    except TimeoutError as error:
        return replace(found, not_run=str(error))
    except ModelError as error:
        if found.trial is None and any(judged != [name] for name, judged in judged_tensors(graph).items()):
            return replace(found, not_run=f"it fails on {found.sample}: {error}")
        if sizes := two_sizes({one.name: one.shape for one in graph.inputs}, feed):
            raise ModelError(f"{found.sample}: {sizes}") from error
        raise


def _fed(graph: gs.Graph, inputs: Sequence[ModelInput], reference: FloatRun) -> dict[str, AnyArray]:
    """Return the feed of a model for one of its float model; ValueError if it does not fit."""
    view = features.view_of(graph)
    taken = reference.feed if view is None else view.fed(reference.feed)
    pairs = [(one, taken[one.name]) for one in inputs]
    feed = {
        one.name: array.astype(one.dtype, copy=False).reshape(taken_shape(one, array)) for one, array in pairs
    }
    check_feed(inputs, feed, reference.sample)
    return feed


def _of(names: Collection[str], reference: FloatRun) -> Outputs:
    return {name: array for name, array in reference.outputs.items() if name in names}


def _run(
    graph: gs.Graph,
    found: FirstRun,
    cases: list[Case],
    pairs: list[FloatRun],
    run: RunOptions,
    options: FirstRunOptions,
) -> FirstRun:
    """Run the model on cases, each the pair of a run of the float model, and again after each node that is
    left in float."""
    light = found.exported[0].graph
    contradiction = "" if found.has_sample else Made(graph, light).contradiction(pairs[0].outputs)
    attempt = try_model if found.once is None else try_once
    while True:
        trials = attempt(*found.exported, cases, run)
        if found.saturated and any(trial.failure for trial in trials):
            found.trial = found.saturated  # ONNX Runtime 1.32 widens no weight that nodes share
            return found
        found.trial = trials[0]
        broken = next((place for place, trial in enumerate(trials) if trial.failure or trial.wrong), None)
        if broken is None:
            if reason := useless(cases, trials):
                raise ModelError(reason)
            return found
        if contradiction:
            return replace(found, trial=None, sample="", not_run=contradiction)
        if broken and is_of_the_float_model(options.source, pairs[broken], run):
            found.fixed.append(pairs[broken].sizes)
            del cases[broken], pairs[broken]
            continue
        if rounded_inputs(graph) and not run.full_inputs:
            run, found.rounded = replace(run, full_inputs=True), found.trial
            continue
        is_asked_for = trials[broken].wrong and sums_saturate() and saturating_products(graph)
        if is_asked_for and not run.exact_sums:  # by saturation = "ignore", or made for another runtime
            run, found.saturated = replace(run, exact_sums=True), found.trial
            continue
        reason, made = fault(found.exported, cases[broken], trials[broken], run)
        if not options.mends:
            return replace(found, wrong=[reason])
        from transforms.leave_float import leave_float  # rarely needed

        if len(found.kept) == _MOST_KEPT or not leave_float(graph, made):
            raise ModelError(reason)
        found.kept.append(reason)
        found.exported = _export(graph, options)


def _comparable(graph: gs.Graph, light: onnx.ModelProto) -> Collection[str]:
    """Return the names of outputs whose numbers have those of another run for each of them.

    Not so if the model draws numbers, or where numbers decide how many rows there are.
    """
    if not_repeatable(light.graph):
        return ()
    return {name for name, judged in judged_tensors(graph).items() if judged == [name]}


def _export(graph: gs.Graph, options: FirstRunOptions) -> Exported:
    light, weights = model_io.export(graph)
    if options.functions:
        model_io.attach_own(light)
    return light, weights
