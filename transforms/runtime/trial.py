"""One run of a model as its users open it, before its file gets its name.

Users open a model in a session that optimizes it, and ONNX Runtime's optimizer puts kernels in the place of
nodes that it finds: those for integers between quantizations, for example. A session without optimization
computes node by node what the file says; where its kernels want what optimization would have made, as scales
that are constants, that is wrong. Each shows the fault of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort

from ops.array_types import Feed
from transforms.files.runtime_message import said_by_runtime
from transforms.graph.lazy_values import Weight
from transforms.model.detached_weights import fill
from transforms.model.model_error import ModelError
from transforms.runtime.compare_runs import run_in_time
from transforms.runtime.crash_probe import crash_of, may_crash
from transforms.runtime.output_errors import MOST_ROUNDED, NOTICED, ROUNDED_INPUTS, OutputErrors
from transforms.runtime.session import OpenModel, RunOptions, open_light
from transforms.search.output_metrics import is_float_array

Outputs = Mapping[str, object]
"""What a run makes, by the names of the outputs: arrays, lists of arrays, or None."""


@dataclass(frozen=True)
class Case:
    """A feed of a model, and the outputs of the float model that are compared; ``where``: it in words."""

    feed: Feed
    wanted: Outputs
    where: str = ""


@dataclass(frozen=True)
class Trial:
    """What a feed shows of a model: the errors of its outputs of float numbers, by their names.

    ``failure``: why the session with optimization does not open or run, else empty.
    """

    errors: Mapping[str, OutputErrors]
    failure: str = ""

    @property
    def wrong(self) -> dict[str, OutputErrors]:
        """The outputs of which one session makes more error than rounding explains."""
        return {name: one for name, one in self.errors.items() if one.is_wrong}

    @property
    def error(self) -> float | None:
        """The mean error of the outputs in a session as users open it, None without any."""
        return float(np.mean([one.made for one in self.errors.values()])) if self.errors else None

    @property
    def plain_error(self) -> float | None:
        """The same without optimization."""
        return float(np.mean([one.plain for one in self.errors.values()])) if self.errors else None


def try_model(
    light: onnx.ModelProto, weights: Mapping[str, Weight], cases: Sequence[Case], options: RunOptions
) -> list[Trial]:
    """Return what each of some feeds shows of a light model, up to one with which a session fails.

    Raises ModelError, naming the feed, if the model does not open or run without optimization either,
    TimeoutError if that takes long.
    """
    plain, failure = _runs(light, weights, cases, replace(options, optimize=False))
    if failure:
        where = cases[len(plain)].where
        raise ModelError(f"it fails on {where}: {failure}" if where else failure)
    made, failure = _runs(light, weights, cases, options)
    noticed = _noticed(light.graph)
    trials = [_trial(*results, noticed) for results in zip(cases, made, plain, strict=False)]
    return [*trials, Trial({}, failure)] if failure else trials


def try_once(
    light: onnx.ModelProto, weights: Mapping[str, Weight], cases: Sequence[Case], options: RunOptions
) -> list[Trial]:
    """Return what some feeds show of a light model in a session as users open it, and in no other.

    Only where that fails is one without optimization opened, as :func:`try_model` does, which raises.
    """
    made, failure = _runs(light, weights, cases, options)
    if failure:
        return try_model(light, weights, cases, options)
    return [_trial(case, outputs, outputs, NOTICED) for case, outputs in zip(cases, made, strict=True)]


def _trial(case: Case, made: Outputs, plain: Outputs, noticed: float) -> Trial:
    errors = {}
    for name, array in plain.items():
        wanted = case.wanted.get(name)
        if is_float_array(array) and is_float_array(wanted):
            assert isinstance(wanted, np.ndarray)
            errors[name] = OutputErrors.of(wanted, made[name], array, noticed)
    return Trial(errors)


def _noticed(graph: onnx.GraphProto) -> float:
    """Return from which error on a difference between sessions means something."""
    products = (node for node in graph.node if node.op_type == "MatMulNBits")
    levels = (one.i for node in products for one in node.attribute if one.name == "accuracy_level")
    return NOTICED + min(ROUNDED_INPUTS * sum(level == 4 for level in levels), MOST_ROUNDED)


def _runs(
    light: onnx.ModelProto, weights: Mapping[str, Weight], cases: Sequence[Case], options: RunOptions
) -> tuple[list[Outputs], str]:
    """Return the outputs of a session for cases in turn, and why it opens or runs no further."""
    made: list[Outputs] = []
    try:
        model = _open_unless_it_crashes(light, weights, options)
        for case in cases:
            made.append(_run(model, case.feed))
    except ModelError as error:
        return made, str(error)
    return made, ""


def open_as_user(light: onnx.ModelProto, weights: Mapping[str, Weight], options: RunOptions) -> OpenModel:
    """Return a light model opened as users open its file; ModelError if the runtime refuses it.

    Our operators are registered: their functions in the model, which run without, are other nodes.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(light)
    return open_light(copy, weights, replace(options, guarded=False))


def run_as_user(
    light: onnx.ModelProto, weights: Mapping[str, Weight], feed: Feed, options: RunOptions
) -> dict[str, object]:
    """Return the outputs of a light model that is opened as users open it.

    Raises ModelError if it does not open or run, or would end the process, TimeoutError if it runs for long.
    """
    return _run(_open_unless_it_crashes(light, weights, options), feed)


def _open_unless_it_crashes(
    light: onnx.ModelProto, weights: Mapping[str, Weight], options: RunOptions
) -> OpenModel:
    """Return a light model opened as users open it; ModelError if that fails, or would end the process."""
    if options.optimize and may_crash(light.graph) and (end := _crash_of(light, weights)):
        raise ModelError(end)
    return open_as_user(light, weights, options)


def _run(model: OpenModel, feed: Feed) -> dict[str, object]:
    try:
        return run_in_time(model, feed)
    except TimeoutError:
        raise
    except Exception as error:  # the runtime's exceptions share no narrower class
        raise ModelError(said_by_runtime(error)) from error


def _crash_of(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> str:
    whole = onnx.ModelProto()
    whole.CopyFrom(light)
    fill(whole, weights)
    return crash_of(whole, int(ort.GraphOptimizationLevel.ORT_ENABLE_ALL))
