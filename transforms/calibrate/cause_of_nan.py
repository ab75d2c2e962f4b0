"""Find the cause of NaN in an output of a model: the infinity from which the first NaN is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import RunOptions


def cause_of_nan(
    graph: gs.Graph, feed: Mapping[str, np.ndarray], run: RunOptions | None, output: str
) -> str | None:
    """Return in words which tensor before an output holds an infinity, and where it becomes NaN.

    None if no float32 tensor holds NaN for a feed, or no infinity precedes the first that does. No tensor
    leaves the model.
    """
    end = next(tensor for tensor in graph.outputs if tensor.name == output)
    on_the_way = walk.ancestors(end) | {id(end)}
    floats = [t for t in _in_order(graph) if id(t) in on_the_way and dtypes.is_type(t, dtypes.FLOAT)]
    broken, infinite = set[str](), set[str]()

    def _see(name: str, array: np.ndarray) -> None:
        if np.isnan(array).any():
            broken.add(name)
        if np.isinf(array).any():
            infinite.add(name)

    names = [tensor.name for tensor in floats if isinstance(tensor, gs.Variable)]
    InstrumentedModel(graph, [], run, watched=names).run(feed, see=_see)
    first = next((tensor for tensor in floats if tensor.name in broken), None)
    before = set() if first is None else walk.ancestors(first)
    for tensor in floats:
        is_constant = isinstance(tensor, gs.Constant)
        is_infinite = np.isinf(tensor.values).any() if is_constant else tensor.name in infinite
        if first is not None and id(tensor) in before and is_infinite:
            is_input = any(tensor is model_input for model_input in graph.inputs)
            kind = "constant" if is_constant else "input" if is_input else "tensor"
            return f"{kind} '{tensor.name}': it holds inf, of which tensor '{first.name}' becomes NaN"
    return None


def _in_order(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield inputs, then for each node its constants and its outputs."""
    yield from graph.inputs
    for node in graph.nodes:
        yield from (tensor for tensor in walk.reads(node) if isinstance(tensor, gs.Constant))
        yield from (tensor for tensor in node.outputs if tensor.name)
