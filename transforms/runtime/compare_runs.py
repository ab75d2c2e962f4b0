"""Two models on the same random inputs: a rewrite of a whole model computes what it did before."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from transforms.files.runtime_message import said_by_runtime
from transforms.graph.lazy_values import Weight, load_values
from transforms.graph.proto_graphs import bodies
from transforms.graph.schemas import RANDOM
from transforms.model.bounds import bytes_in_runs
from transforms.model.model_error import ModelError
from transforms.model.quiet_settings import SILENT
from transforms.runtime.inputs import ModelInput, random_array
from transforms.runtime.session import MissingKernelError, OpenModel, RunOptions, open_light

log = logging.getLogger(__name__)

MOST_WEIGHTS = 200_000_000
"""Bytes of large weights above which models are not compared."""

MOST_NODES = 3000
"""Nodes of a graph up to which it is run beside what was made of it: opening takes time in their square."""

_MOST_ELEMENTS = 1 << 26
"""Elements of a tensor, as far as they are known, above which models are not compared."""

_SECONDS = 10.0
"""Time limit of a run."""

_FREE_SIZES = (2, 1, 16, 64, 224)
"""Sizes that are tried in turn for all free dimensions."""

_CRASHING = "InstanceNormalization"
_SPACIOUS = (16, 64, 224)
"""An operator with which ONNX Runtime ends the process if it gets no elements, as a window leaves of an input
of its size, and the sizes of models that have it."""

_MOST_TRIED = 1 << 19
"""Elements of an input above which a size is tried with leading dimensions of 1, else not at all, unless the
first size makes the input as large: the time of a raise is bound by it where no size fits."""

_TOLERANCES = {2: 2e-2, 4: 1e-3, 8: 1e-6}
"""Error of an output by the bytes of a float, as a share of its norm: kernels of other opsets add in other
orders. A changed meaning differs by more than the last digits."""

_OTHERS = 0.01
"""Share of an output's integers, or of its infinities and NaN, that another order of sums may change."""


def compare_runs(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    weights: Mapping[str, Weight],
    *,
    change: str = "changed",
) -> bool:
    """Return whether two models with the same inputs could be compared, as :func:`why_not_compared` does."""
    reason = why_not_compared(before, after, weights, change=change)
    if reason is not None:
        log.debug("%s model not compared: %s", change, reason)
    return reason is None


def why_not_compared(
    before: onnx.ModelProto, after: onnx.ModelProto, weights: Mapping[str, Weight], *, change: str
) -> str | None:
    """Return why two models with the same inputs could not be compared, None if they could and agree.

    They run on the same random numbers, in sessions that do not optimize. ``weights`` are arrays, used
    without a copy, or lazy values for inputs that hold weights. Not compared are models that are large, whose
    inputs cannot be generated, whose original ONNX Runtime does not run, that draw random numbers or run too
    long. Raises ModelError naming an output that differs by more than rounding, or the reason why the changed
    model does not run; ``change`` is what the error says was done to it.
    """
    for model in (before, after):  # functions of the one are bodies of the other
        if reason := too_large(model, weights) or not_repeatable(model.graph):
            return reason
    try:
        old = _open(before)
        arrays = {name: load_values(held) for name, held in weights.items()}
        feed, expected = feed_and_run(old, arrays, sizes=free_sizes(before.graph))
    except Exception as error:  # of the runtime, on the original model: not caused by the change
        log.debug("the original model does not run: %s", error)
        is_clear = isinstance(error, TimeoutError | ValueError) and not isinstance(error, ModelError)
        return str(error) if is_clear else "ONNX Runtime does not run the original on random numbers"
    try:
        results = run_in_time(_open(after), feed)
    except (MissingKernelError, TimeoutError) as error:
        return str(error)  # other runtimes may have the kernels
    except Exception as error:  # the runtime's exceptions share no narrower class
        raise ModelError(f"the {change} model does not run: {said_by_runtime(error)}") from error
    for name, result in expected.items():
        if difference := _difference(result, results[name]):
            raise ModelError(f"output '{name}' differs on random input: {difference}")
    return None


def too_large(model: onnx.ModelProto, weights: Mapping[str, Weight]) -> str:
    """Return why running a model with its large weights would take too much, empty if it does not."""
    held = sum(bytes_in_runs(one.dtype, one.nbytes // one.dtype.itemsize) for one in weights.values())
    if held > MOST_WEIGHTS:
        return f"{held:,} bytes of weights, more than {MOST_WEIGHTS:,}"
    if len(model.graph.node) > MOST_NODES:
        return f"{len(model.graph.node):,} nodes, more than {MOST_NODES:,}"
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name not in weights and math.prod(size or 1 for size in shape) > _MOST_ELEMENTS:
            return f"tensor '{value.name}' of {shape}"
    return ""


def not_repeatable(graph: onnx.GraphProto) -> str:
    """Return why two runs of a graph need not make the same numbers, empty if they have to."""
    if random := next(_random_operators(graph), ""):
        return f"{random} draws other numbers in each run"
    for tensor in graph.initializer:
        if len(tensor.dims) > 1 and 0 in tensor.dims:  # [0] stands for an input that is left out
            return (
                f"constant '{tensor.name}' has no elements: a Concat with others may leave memory as it was"
            )
    return ""


def _random_operators(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        if node.op_type in RANDOM or (node.op_type == "Dropout" and any(node.input[2:])):
            yield node.op_type
        for body in bodies(node):
            yield from _random_operators(body)


def _open(model: onnx.ModelProto) -> OpenModel:
    return open_light(model, {}, RunOptions(optimize=False, prepack=False, spin=False))


def free_sizes(graph: onnx.GraphProto) -> tuple[int, ...]:
    """Return the sizes that are tried for the free dimensions of a graph's inputs."""
    return _SPACIOUS if needs_space(graph) else _FREE_SIZES


def needs_space(graph: onnx.GraphProto) -> bool:
    """Return whether inputs of a few elements may end the process."""
    return any(node.op_type == _CRASHING for node in graph.node)


def feed_and_run(
    model: OpenModel,
    weights: Mapping[str, np.ndarray],
    inputs: Sequence[ModelInput] | None = None,
    *,
    sizes: Sequence[int] = _FREE_SIZES,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return a feed that the model accepts and its outputs; raises the runtime's error on the last one.

    ``inputs``: their shapes, if fewer dimensions are free than the model says. ``sizes``: what is tried for
    these, as :func:`free_sizes` returns.
    """
    asked = [one for one in inputs or model.inputs if one.name not in weights]
    failure: Exception = ValueError("no inputs could be generated")
    for inputs in _sized(asked, sizes):
        random = np.random.default_rng(0)
        feed = {one.name: random_array(one, random) for one in inputs}
        try:
            return feed | dict(weights), run_in_time(model, feed | dict(weights))
        except TimeoutError:
            raise
        except Exception as error:  # the runtime's exceptions share no narrower class
            failure = error
    raise failure


def _sized(asked: Sequence[ModelInput], sizes: Sequence[int]) -> Iterator[list[ModelInput]]:
    """Yield the inputs with their free dimensions filled, with one size after the other."""
    first = _filled(asked, sizes[0])
    if _largest(first) > _MOST_ELEMENTS:
        return
    yield first
    if not any(None in one.shape for one in asked):
        return
    bound = max(_MOST_TRIED, _largest(first))
    for size in sizes[1:]:
        for leading in (size, 1):
            inputs = _filled(asked, size, leading)
            if _largest(inputs) <= bound:
                yield inputs
                break


def _filled(asked: Sequence[ModelInput], size: int, leading: int | None = None) -> list[ModelInput]:
    inputs = []
    for one in asked:
        fill = (leading or size, *[size] * len(one.shape))
        shape = tuple(free if known is None else known for known, free in zip(one.shape, fill, strict=False))
        inputs.append(ModelInput(one.name, one.dtype, shape))
    return inputs


def _largest(inputs: Sequence[ModelInput]) -> int:
    return max((math.prod(size or 1 for size in one.shape) for one in inputs), default=0)


def run_in_time(model: OpenModel, feed: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the outputs for a feed; TimeoutError when the time of a run is up, and the runtime's errors."""
    with _time_limit() as options:
        return dict(zip(model.outputs, model.session.run(None, dict(feed), options), strict=True))


@contextmanager
def _time_limit() -> Iterator[ort.RunOptions]:
    """Yield run options that end a run with TimeoutError when its time is up."""
    options, over = ort.RunOptions(), []
    options.log_severity_level = SILENT

    def _end() -> None:
        over.append(True)
        options.terminate = True

    timer = Timer(_SECONDS, _end)
    timer.daemon = True
    timer.start()
    try:
        yield options
    except Exception as error:
        if over:
            raise TimeoutError(f"a run takes more than {_SECONDS} s") from error
        raise
    finally:
        timer.cancel()


def _difference(old: object, new: object) -> str:
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return f"{len(new)} elements instead of {len(old)}"
        return next(filter(None, map(_difference, old, new)), "")
    if isinstance(old, dict) and isinstance(new, dict):  # of a classifier: a number for each class
        return _difference(_values(old, old), _values(new, old)) if old.keys() == new.keys() else "other keys"
    if not isinstance(old, np.ndarray) or not isinstance(new, np.ndarray):
        return "" if old is None and new is None else "another kind of value"
    if old.shape != new.shape or old.dtype != new.dtype:
        return f"{new.dtype}{list(new.shape)} instead of {old.dtype}{list(old.shape)}"
    if old.dtype.kind != "f":
        share = float(np.mean(old != new)) if old.size else 0.0
        return f"{share:.1%} of the numbers differ" if share > _OTHERS else ""
    return _float_difference(old, new)


def _values(found: Mapping[object, object], keys: Iterable[object]) -> np.ndarray:
    values = np.array([found[key] for key in keys])
    return values.astype(np.float32) if values.dtype.kind == "f" else values  # as maps of ONNX hold them


def _float_difference(old: np.ndarray, new: np.ndarray) -> str:
    finite = np.isfinite(old) & np.isfinite(new)
    same = finite | (old == new) | (np.isnan(old) & np.isnan(new))
    share = float(np.mean(~same)) if old.size else 0.0
    if share > _OTHERS:
        return f"{share:.1%} of the infinities or NaN differ"
    wanted, got = old[finite].astype(np.float64), new[finite].astype(np.float64)
    error, norm = float(np.linalg.norm(got - wanted)), float(np.linalg.norm(wanted))
    if error <= _TOLERANCES[old.dtype.itemsize] * norm:
        return ""
    return f"relative error {error / norm if norm else np.inf:.2g}"
