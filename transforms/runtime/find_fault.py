"""The node of a model that a session with optimization computes otherwise than one without.

Halving the graph finds it: each beginning of the graph is a model of its own, run in both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx

from ops.array_types import Feed
from transforms.graph.lazy_values import Weight
from transforms.graph.proto_graphs import bodies, read_names
from transforms.graph.qdq import STANDARD
from transforms.model.model_error import ModelError
from transforms.runtime.output_errors import NOTICED, relative_error
from transforms.runtime.session import RunOptions
from transforms.runtime.trial import run_as_user
from transforms.search.output_metrics import is_float_array

_SHARE = 0.25
"""Share of the error at the outputs that has to be there after the node that makes it: later nodes may add
to it, or let only a part of it through, which this leaves room for."""

_MOVES = frozenset({*STANDARD, "Cast"})


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
