"""Tensors that depend on no input, each computed when needed: together they may exceed memory."""

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
"""Operators between a constant and a layer, with the same result in each run."""


class StoredTensors:
    """The tensors of a main graph that are constants, or computed from constants by roundings."""

    def __init__(self, graph: gs.Graph, names: Iterable[str], options: RunOptions | None) -> None:
        """Find them; KeyError for an unknown name."""
        self._graph, self._options = graph, options
        tensors = walk.tensors(graph)
        self._found = {name: tensors[name] for name in names if _makers(tensors[name]) is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def load(self, name: str) -> np.ndarray:
        """Return one of them, bfloat16 as float32."""
        tensor = self._found[name]
        if isinstance(tensor, gs.Constant):
            return readable(tensor)
        nodes = _makers(tensor)
        assert nodes, "asked for when it was found"
        main = self._graph
        versions = {"opset": main.opset, "ir_version": main.ir_version}
        graph = Graph(nodes, [], [tensor], import_domains=main.import_domains, **versions)
        return open_shown(graph, [name], self._options).run({})[name]


def open_shown(graph: gs.Graph, names: Sequence[str], options: RunOptions | None) -> InstrumentedModel[str]:
    """Open a model that shows tensors; bfloat16 nodes without kernels are widened in the graph."""
    try:
        return InstrumentedModel(graph, names, options)
    except ValueError:
        if not widen_bf16(graph):
            raise
    return InstrumentedModel(graph, names, options)


def _makers(tensor: gs.Tensor) -> list[gs.Node] | None:
    """Return the nodes that compute a tensor from constants, in order; None if some are not roundings."""
    nodes: dict[int, gs.Node] = {}
    waiting = [tensor]
    while waiting:
        tensor = waiting.pop()
        if isinstance(tensor, gs.Constant) or tensor.is_empty():
            continue
        node = walk.producer(tensor)
        if node is None or node.op not in _ROUNDINGS:
            return None
        nodes.pop(id(node), None)  # moved before all its readers
        nodes[id(node)] = node
        waiting += reversed(node.inputs)
    return list(nodes.values())[::-1]
