"""One run of a model as its users open it, before its file gets its name.

Users open a model in a session that optimizes it, and ONNX Runtime's optimizer puts kernels in the place of
nodes that it finds: those for integers between quantizations, for example. A session without optimization
computes node by node what the file says, and shows what those kernels make of it. Halving the graph shows
which node is computed wrongly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort

from ops.array_types import AnyArray, Feed
from ops.metrics import sums_of_numbers
from transforms.files.runtime_message import said_by_runtime
from transforms.graph.lazy_values import Weight
from transforms.graph.proto_graphs import bodies, read_names
from transforms.model.detached_weights import fill
from transforms.model.model_error import ModelError
from transforms.runtime.compare_runs import run_in_time
from transforms.runtime.session import OpenModel, RunOptions, open_light
from transforms.runtime.survival import how_it_ends, is_risky
from transforms.search.output_metrics import is_float_array

Outputs = Mapping[str, object]
"""What a run makes, by the names of the outputs: arrays, lists of arrays, or None."""

EXPLAINED = 2.0
"""Times of the error of a session without optimization that one with it may have, in power: 3 dB.

Both round to the same levels. Where two numbers lie next to the middle between levels another order of sums
takes the other one, which adds a share of the error that rounding makes anyway; all of it once more, at
most, if it hit every number: independent errors of equal power.
"""

CHANCE = 6.2
"""What an output of n numbers may show more by chance: the factor exp(6.2 / sqrt(n)).

The logarithm of a sum of n squares has a variance of about 2 / n, that of the ratio of two of 4 / n. Beyond
3.1 standard deviations there is one in a thousand.
"""

NOTICED = 1e-6
"""Error of a session with optimization by the power of an output, up to which orders of sums explain it:
(1e-3)^2, as where two float models are compared (:mod:`transforms.runtime.compare_runs`)."""


_SHARE = 0.25
"""Share of the error at the outputs that has to be there after the node that makes it: later nodes may add
to it, or let only a part of it through, which this leaves room for."""

_MOVES = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast"})


@dataclass(frozen=True)
class OutputErrors:
    """Squared errors of an output, by its power, whose errors scatter like those of ``count`` numbers.

    ``made``: in a session as users open it, against the float model; ``plain``: the same without
    optimization; ``between``: of the one against the other.
    """

    count: float
    made: float
    plain: float
    between: float

    @property
    def is_wrong(self) -> bool:
        """Whether optimization changes the output by more than rounding explains."""
        chance = math.exp(CHANCE / math.sqrt(max(self.count, 1)))
        explained = EXPLAINED * chance * self.plain + NOTICED
        return self.made > explained and self.between > NOTICED


@dataclass(frozen=True)
class Trial:
    """What a feed shows of a model: the errors of its outputs of float numbers, by their names.

    ``failure``: why the session with optimization does not open or run, else empty.
    """

    errors: Mapping[str, OutputErrors]
    failure: str = ""

    @property
    def wrong(self) -> dict[str, OutputErrors]:
        """The outputs that optimization changes by more than rounding explains."""
        return {name: one for name, one in self.errors.items() if one.is_wrong}

    @property
    def error(self) -> float | None:
        """The mean error of the outputs in a session as users open it, None without any."""
        return float(np.mean([one.made for one in self.errors.values()])) if self.errors else None


def try_model(
    light: onnx.ModelProto,
    weights: Mapping[str, Weight],
    feed: Feed,
    wanted: Outputs,
    options: RunOptions,
) -> Trial:
    """Return what a feed shows of a light model; ``wanted``: outputs of the float model to compare with.

    Raises ModelError if the model does not open or run without optimization either, TimeoutError if that
    takes long.
    """
    plain = run_as_user(light, weights, feed, replace(options, optimize=False))
    try:
        made = run_as_user(light, weights, feed, options)
    except ModelError as error:
        return Trial({}, str(error))
    known = [
        name for name, array in plain.items() if is_float_array(array) and is_float_array(wanted.get(name))
    ]
    return Trial({name: _errors(wanted[name], made[name], plain[name]) for name in known})


def _errors(wanted: object, made: object, plain: object) -> OutputErrors:
    assert isinstance(wanted, np.ndarray)
    pairs = (wanted, made), (wanted, plain), (plain, made)
    return OutputErrors(_count(wanted, plain), *(relative_error(*pair) for pair in pairs))


def _count(wanted: AnyArray, found: object) -> float:
    """Return how many numbers of equal errors scatter as much as these: after a Softmax a few are all."""
    assert isinstance(found, np.ndarray)
    if wanted.shape != found.shape:
        return wanted.size
    with np.errstate(all="ignore"):
        squares = np.square(np.asarray(wanted, np.float64) - np.asarray(found, np.float64))
    squares = squares[np.isfinite(squares)]
    return float(squares.sum() ** 2 / np.square(squares).sum()) if squares.any() else wanted.size


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
    if options.optimize and is_risky(light.graph) and (end := _how_it_ends(light, weights)):
        raise ModelError(end)
    model = open_as_user(light, weights, options)
    try:
        return run_in_time(model, feed)
    except TimeoutError:
        raise
    except Exception as error:  # the runtime's exceptions share no narrower class
        raise ModelError(said_by_runtime(error)) from error


def _how_it_ends(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> str:
    whole = onnx.ModelProto()
    whole.CopyFrom(light)
    fill(whole, weights)
    return how_it_ends(whole, int(ort.GraphOptimizationLevel.ORT_ENABLE_ALL))


def relative_error(wanted: object, found: object) -> float:
    """Return squared error by power of an array; infinite where the other has another shape or NaN.

    Numbers that are NaN or infinite in the first do not count.
    """
    assert isinstance(wanted, np.ndarray) and isinstance(found, np.ndarray)
    if wanted.shape != found.shape:
        return np.inf
    sums = sums_of_numbers(wanted, found)
    if sums.other_non_finite:
        return np.inf
    error, power = sums.error_energy, sums.baseline_energy
    return 0.0 if error == 0 else error / power if power else np.inf


def find_fault(
    light: onnx.ModelProto,
    weights: Mapping[str, Weight],
    feed: Feed,
    options: RunOptions,
    change: float | None,
) -> onnx.NodeProto | None:
    """Return the node of the main graph up to which a session with optimization does what one without does.

    ``change``: the largest squared error by power between outputs of both, None where the session fails. The
    node is the first with which a prefix of the graph fails, or differs; for a quantization what it
    quantizes. Opens two sessions for each halving. None if no prefix shows it.
    """
    level = None if change is None else max(_SHARE * min(change, 1.0), NOTICED)
    count = len(light.graph.node)

    def _is_bad_at(node: int) -> bool:
        return _is_bad(_prefix(light, node), weights, feed, options, level)

    if not _is_bad_at(count):
        return None
    first = 1 + bisect_left(range(1, count), True, key=_is_bad_at)
    return _computing(light.graph, light.graph.node[first - 1])


def _computing(graph: onnx.GraphProto, node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node that computes what one only rounds."""
    made = {name: one for one in graph.node for name in one.output}
    while node.op_type in _MOVES and node.input[0] in made:
        node = made[node.input[0]]
    return node


def _is_bad(
    part: onnx.ModelProto,
    weights: Mapping[str, Weight],
    feed: Feed,
    options: RunOptions,
    level: float | None,
) -> bool:
    """Return whether a model fails in a session with optimization, or differs by more than a level."""
    held = {tensor.name for tensor in part.graph.initializer}
    used = {name: array for name, array in weights.items() if name in held}
    asked = {value.name for value in part.graph.input}
    fed = {name: array for name, array in feed.items() if name in asked}
    try:
        plain = run_as_user(part, used, fed, replace(options, optimize=False))
    except (ModelError, TimeoutError):
        return False  # what is shown of it has a type that no output may have, for example
    try:
        made = run_as_user(part, used, fed, options)
    except ModelError:
        return True
    if level is None:
        return False
    return any(relative_error(*pair) > level for pair in _pairs(plain, made))


def _pairs(plain: Mapping[str, object], made: Mapping[str, object]) -> Iterator[tuple[object, object]]:
    """Yield both forms of what can be compared: float numbers, and levels of integers around their mean."""
    for name, array in plain.items():
        other = made[name]
        if is_float_array(array):
            yield array, other
        elif isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.dtype.itemsize <= 2:
            assert isinstance(other, np.ndarray)
            mean = array.mean() if array.size else 0.0
            yield array - mean, other - mean


def _prefix(light: onnx.ModelProto, count: int) -> onnx.ModelProto:
    """Return the model of the first nodes, with all that later ones and the outputs read of them."""
    nodes = light.graph.node[:count]
    part = onnx.ModelProto()
    part.CopyFrom(light)
    del part.graph.node[count:], part.graph.output[:]
    read = set(_names(nodes))
    kept = [tensor for tensor in part.graph.initializer if tensor.name in read]
    del part.graph.initializer[:]
    part.graph.initializer.extend(kept)
    later = {*_names(light.graph.node[count:]), *(value.name for value in light.graph.output)}
    shown = dict.fromkeys(name for node in nodes for name in node.output if name and name in later)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in shown)
    return part


def _names(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yield the names that nodes read, also in their bodies."""
    for node in nodes:
        yield from node.input
        for body in bodies(node):
            yield from read_names(body)
