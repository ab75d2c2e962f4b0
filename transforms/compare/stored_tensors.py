"""Tensors that depend on no input of a model, each made when it is asked for: together they may not fit into
memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.qdq import BLOCKS, PAIRS
from transforms.graph.typed import Graph
from transforms.run.instrumented_model import InstrumentedModel, readable
from transforms.runtime.session import RunOptions
from transforms.widen_bf16 import widen_bf16

_ROUNDINGS = frozenset(
    (
        *("Cast", "Clip", "Identity", "Reshape", "Transpose", "Sub", "Mul", "Slice"),
        *(*PAIRS, *BLOCKS),
    )
)
"""Operators between a constant and what a layer reads, which make the same of it in each run."""


class StoredTensors:
    """Those of some tensors of the main graph that are constants, or made of constants alone by roundings."""

    def __init__(self, graph: gs.Graph, names: Iterable[str], options: RunOptions | None) -> None:
        """Find them; KeyError for a name that is not there."""
        self._graph, self._options = graph, options
        known = walk.tensors(graph)
        self._found = {name: known[name] for name in names if _makers(known[name]) is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def load(self, name: str) -> np.ndarray:
        """Return one of them, bfloat16 as float32."""
        tensor = self._found[name]
        if isinstance(tensor, gs.Constant):
            return readable(tensor)
        nodes = _makers(tensor)
        assert nodes, "asked for when it was found"
        whole = self._graph
        versions = {"opset": whole.opset, "ir_version": whole.ir_version}
        graph = Graph(nodes, [], [tensor], import_domains=whole.import_domains, **versions)
        return open_shown(graph, [name], self._options).run({})[name]


def open_shown(graph: gs.Graph, names: Sequence[str], options: RunOptions | None) -> InstrumentedModel[str]:
    """Return a model that shows tensors; bfloat16 nodes without kernels are widened, which changes it."""
    try:
        return InstrumentedModel(graph, names, options)
    except ValueError:
        if not widen_bf16(graph):
            raise
    return InstrumentedModel(graph, names, options)


def _makers(tensor: gs.Tensor) -> list[gs.Node] | None:
    """Return the nodes that make a tensor of constants, in order; None if others than roundings do."""
    nodes: dict[int, gs.Node] = {}
    waiting = [tensor]
    while waiting:
        tensor = waiting.pop()
        if isinstance(tensor, gs.Constant) or tensor.is_empty():
            continue
        node = walk.producer(tensor)
        if node is None or node.op not in _ROUNDINGS:
            return None
        nodes.pop(id(node), None)  # it comes before all that read it
        nodes[id(node)] = node
        waiting += reversed(node.inputs)
    return list(nodes.values())[::-1]
