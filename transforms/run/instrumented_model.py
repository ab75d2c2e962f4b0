"""Running a model such that it tells of its inner tensors: the range of each, or the tensor itself.

Ranges are found by nodes put after the tensors, so that large tensors neither leave the model nor live
longer than they would without.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from ops.array_types import Feed
from transforms.graph import dtypes, walk
from transforms.model import graph_proto
from transforms.runtime.session import OpenModel, RunOptions, open_light

EMPTY = (math.inf, -math.inf)
"""The range of no numbers: what ONNX Runtime's ReduceMin and ReduceMax make of an empty tensor."""

_FLOAT = "tensor(float)"
_REDUCTIONS = {"low": "ReduceMin", "high": "ReduceMax", "sum": "ReduceSum"}
_HANDING_ON = frozenset(
    {"Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "LayerNormalization", "Softmax"}
    | {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Identity"}
)
"""Operators whose output holds NaN when an input does, so that looking at the output is enough."""


@dataclass(frozen=True)
class Observation:
    """What one sample did: lowest and highest number of the reduced tensors, and the fetched tensors.

    ``is_doubtful`` tells that a number may not be finite, and that the ranges are not to be relied on:
    ReduceMin and ReduceMax can pass over NaN, and over other numbers because of it.
    """

    ranges: dict[str, tuple[float, float]]
    arrays: dict[str, np.ndarray]
    is_doubtful: bool


class InstrumentedModel:
    """A float model of which tensors can be seen for each feed."""

    def __init__(
        self,
        graph: gs.Graph,
        reduced: Collection[str],
        fetched: Collection[str],
        options: RunOptions | None = None,
    ) -> None:
        """Open a copy of the graph to see the ranges of some tensors, and others as arrays, by their names.

        ValueError when one of them is not float32. Fetched tensors are in memory all at once.
        """
        light, weights = graph_proto.export_light(graph)
        inputs = {value.name for value in light.graph.input}
        self._fetched = list(fetched)
        others = [name for name in float_outputs(graph) if name not in self._fetched]
        self._ranges, self._sums = _insert_reductions(graph, light.graph, reduced, others)
        made = [name for name in self._fetched if name not in inputs]
        reductions = [name for pair in self._ranges.values() for name in pair] + self._sums
        set_outputs(light.graph, [*reductions, *made])
        self._model = open_light(light, weights, options)
        _check_types(self._model, {low: name for name, (low, _) in self._ranges.items()})
        _check_types(self._model, {name: name for name in self._fetched})

    def run(self, feed: Feed) -> Observation:
        """Return what a sample does."""
        found = self._model.run(feed)
        ranges = {name: (float(found[a]), float(found[b])) for name, (a, b) in self._ranges.items()}
        finite = all(math.isfinite(high - low) for low, high in ranges.values() if (low, high) != EMPTY)
        finite &= all(math.isfinite(found[name]) for name in self._sums)
        arrays = {name: found[name] if name in found else feed[name] for name in self._fetched}
        return Observation(ranges, arrays, not finite)


def float_outputs(graph: gs.Graph) -> list[str]:
    """Return the names of the float32 outputs that the graph computes."""
    made = (tensor for tensor in graph.outputs if isinstance(tensor, gs.Variable))
    return [tensor.name for tensor in made if dtypes.is_type(tensor, dtypes.FLOAT)]


def _insert_reductions(
    graph: gs.Graph, proto: onnx.GraphProto, reduced: Collection[str], others: Collection[str]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Put reductions directly after tensors; return the names of lowest and highest numbers, and of sums.

    Sums, which are not finite when a term is not, tell of NaN in ``reduced`` and ``others``.
    """
    names, after = walk.Names(graph), dict[str, list[onnx.NodeProto]]()

    def _reduce(name: str, what: str) -> str:
        output = names.derive(name, what)
        node = helper.make_node(_REDUCTIONS[what], [name], [output], output, keepdims=0)
        after.setdefault(name, []).append(node)
        return output

    ranges = {name: (_reduce(name, "low"), _reduce(name, "high")) for name in reduced}
    sums = [_reduce(name, "sum") for name in _where_nan_ends(proto, {*reduced, *others})]
    insert_after(proto, after)
    return ranges, sums


def _where_nan_ends(proto: onnx.GraphProto, watched: Collection[str]) -> list[str]:
    """Return tensors of which at least one holds NaN when any of the watched ones does."""
    ends: list[str] = []
    telling: set[str] = set()  # that NaN in these shows up in one of the ends
    for node in reversed(proto.node):
        ends += [name for name in node.output if name in watched and name not in telling]
        telling.update(ends)
        if node.op_type in _HANDING_ON and not node.domain and node.output[0] in telling:
            telling.update(node.input)
    return ends + [value.name for value in proto.input if value.name in watched and value.name not in telling]


def insert_after(proto: onnx.GraphProto, after: Mapping[str, list[onnx.NodeProto]]) -> None:
    """Put nodes directly after what makes the tensors that they are given for, or after the inputs."""
    made = list(proto.node)
    del proto.node[:]
    for value in proto.input:
        proto.node.extend(after.get(value.name, ()))
    for node in made:
        proto.node.append(node)
        for name in node.output:
            proto.node.extend(after.get(name, ()))


def set_outputs(proto: onnx.GraphProto, names: Iterable[str]) -> None:
    """Let the tensors, whose types the runtime infers, be the outputs."""
    del proto.output[:]
    proto.output.extend(onnx.ValueInfoProto(name=name) for name in names)


def _check_types(model: OpenModel, outputs: Mapping[str, str]) -> None:
    arguments = (*model.session.get_inputs(), *model.session.get_outputs())
    types = {argument.name: argument.type for argument in arguments}
    for output, name in outputs.items():
        if types[output] != _FLOAT:
            raise ValueError(f"'{name}' is a {types[output]}, only tensors of float32 have ranges")
