"""Finding the origin of the first NaN of a sample: its tensor, and the infinity before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from transforms.graph import dtypes, walk
from transforms.model import graph_proto
from transforms.run.instrumented_model import insert_after, set_outputs
from transforms.runtime.session import RunOptions, open_light

_OPSET = 10
"""First opset with IsInf."""

_TESTS = {"nan": "IsNaN", "inf": "IsInf"}


@dataclass(frozen=True)
class FirstNaN:
    """The first tensor that holds NaN, and the tensor, if any, whose infinity caused it.

    ``kind`` of the latter: input, constant or tensor.
    """

    name: str
    infinite: str | None
    kind: str


def first_nan(graph: gs.Graph, feed: Mapping[str, np.ndarray], run: RunOptions | None) -> FirstNaN | None:
    """Return the first tensor of the main graph that holds NaN for a feed; None where no float32 tensor does.

    Nothing but one number a tensor leaves the model. None below opset 10, too.
    """
    if graph.opset < _OPSET:
        return None
    floats = [tensor for tensor in _in_order(graph) if dtypes.is_type(tensor, dtypes.FLOAT)]
    found = _test(graph, [t.name for t in floats if isinstance(t, gs.Variable)], feed, run)
    first = next((tensor for tensor in floats if "nan" in found.get(tensor.name, ())), None)
    if first is None:
        return None
    ancestors = _ancestors(first)
    for tensor in floats:
        constant = isinstance(tensor, gs.Constant)
        infinite = np.isinf(tensor.values).any() if constant else "inf" in found[tensor.name]
        if id(tensor) in ancestors and infinite:
            is_input = any(tensor is one for one in graph.inputs)
            kind = "constant" if constant else "input" if is_input else "tensor"
            return FirstNaN(first.name, tensor.name, kind)
    return FirstNaN(first.name, None, "tensor")


def _test(
    graph: gs.Graph, names: list[str], feed: Mapping[str, np.ndarray], run: RunOptions | None
) -> dict[str, set[str]]:
    """Return for each tensor whether it holds NaN, and whether infinity."""
    light, weights = graph_proto.export_light(graph)
    free, after = walk.Names(graph), dict[str, list[onnx.NodeProto]]()
    outputs: dict[str, tuple[str, str]] = {}
    for name in names:
        for what, op in _TESTS.items():
            is_so, number, most = (free.derive(name, f"{what}_{step}") for step in ("test", "number", "any"))
            after.setdefault(name, []).extend(
                (
                    helper.make_node(op, [name], [is_so], is_so),
                    helper.make_node("Cast", [is_so], [number], number, to=dtypes.FLOAT),
                    helper.make_node("ReduceMax", [number], [most], most, keepdims=0),
                )
            )
            outputs[most] = name, what
    insert_after(light.graph, after)
    set_outputs(light.graph, outputs)
    found: dict[str, set[str]] = {name: set() for name in names}
    for output, value in open_light(light, weights, run).run(feed).items():
        name, what = outputs[output]
        found[name] |= {what} if value > 0 else set()
    return found


def _in_order(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield inputs, then for each node its constants and its outputs."""
    yield from graph.inputs
    for node in graph.nodes:
        yield from (tensor for tensor in _read(node) if isinstance(tensor, gs.Constant))
        yield from (tensor for tensor in node.outputs if tensor.name)


def _read(node: gs.Node) -> Iterator[gs.Tensor]:
    yield from node.inputs
    for body in walk.bodies(node):
        yield from (tensor for inner in walk.nodes(body) for tensor in inner.inputs)


def _ancestors(tensor: gs.Tensor) -> set[int]:
    """Return the ids of all tensors that a tensor depends on."""
    seen: set[int] = set()
    waiting = [tensor]
    while waiting:
        for node in waiting.pop().inputs:
            new = [one for one in _read(node) if id(one) not in seen]
            seen.update(id(one) for one in new)
            waiting += new
    return seen
