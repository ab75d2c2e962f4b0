"""Where NaN in an output of a model comes from: the first tensor with it, and the infinity it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import RunOptions

_OPSET = 10
"""First opset with IsInf."""

_NONE = np.zeros(())


@dataclass(frozen=True)
class FirstNaN:
    """The first tensor that holds NaN, and the tensor, if any, whose infinity caused it.

    ``kind`` of the latter: input, constant or tensor.
    """

    name: str
    infinite: str | None
    kind: str


def first_nan(
    graph: gs.Graph, feed: Mapping[str, np.ndarray], run: RunOptions | None, output: str
) -> FirstNaN | None:
    """Return the first tensor on the way to an output that holds NaN for a feed; None if no float32 one does.

    Nothing but one number a tensor leaves the model. None below opset 10, too.
    """
    if graph.opset < _OPSET:
        return None
    end = next(tensor for tensor in graph.outputs if tensor.name == output)
    on_the_way = _ancestors(end) | {id(end)}
    floats = [t for t in _in_order(graph) if id(t) in on_the_way and dtypes.is_type(t, dtypes.FLOAT)]
    names = [tensor.name for tensor in floats if isinstance(tensor, gs.Variable)]
    probes = [(name, probe) for name in names for probe in ("nan", "inf")]
    found = InstrumentedModel(graph, probes, run).run(feed)
    first = next((tensor for tensor in floats if found.get((tensor.name, "nan"), _NONE) > 0), None)
    if first is None:
        return None
    ancestors = _ancestors(first)
    for tensor in floats:
        constant = isinstance(tensor, gs.Constant)
        infinite = np.isinf(tensor.values).any() if constant else found[tensor.name, "inf"] > 0
        if id(tensor) in ancestors and infinite:
            is_input = any(tensor is one for one in graph.inputs)
            kind = "constant" if constant else "input" if is_input else "tensor"
            return FirstNaN(first.name, tensor.name, kind)
    return FirstNaN(first.name, None, "tensor")


def _in_order(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield inputs, then for each node its constants and its outputs."""
    yield from graph.inputs
    for node in graph.nodes:
        yield from (tensor for tensor in walk.reads(node) if isinstance(tensor, gs.Constant))
        yield from (tensor for tensor in node.outputs if tensor.name)


def _ancestors(tensor: gs.Tensor) -> set[int]:
    """Return the ids of all tensors that a tensor depends on."""
    seen: set[int] = set()
    waiting = [tensor]
    while waiting:
        for node in waiting.pop().inputs:
            new = [one for one in walk.reads(node) if id(one) not in seen]
            seen.update(id(one) for one in new)
            waiting += new
    return seen
