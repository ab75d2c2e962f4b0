"""Channels of a tensor that get products of their own, which Adds put to those of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.channels.factor_takers import rows_of
from transforms.channels.move_outliers import MovedWeights
from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import constant, derived
from transforms.graph.rewire import Insertions


class OwnProducts:
    """Adds products of single channels to layers of a graph; ``made``: their rows of weights."""

    def __init__(
        self, graph: gs.Graph, names: walk.Names, made: MovedWeights, insertions: Insertions
    ) -> None:
        """Add nothing yet."""
        self._graph, self._names, self._made, self.insertions = graph, names, made, insertions

    def add(self, tensor: gs.Tensor, layers: Sequence[gs.Node], channels: NDArray[np.int64]) -> None:
        """Let each layer of a tensor make what it makes of some channels by another product."""
        taken = self._take(tensor, channels)
        for node in layers:
            self._add_product(node, taken, channels)

    def _take(self, tensor: gs.Tensor, own: NDArray[np.int64]) -> gs.Tensor:
        """Return the channels of a tensor that get products of their own."""
        taken = dtypes.variable(self._names.derive(tensor.name, "own"), dtypes.FLOAT, tensor)
        if taken.shape is not None:
            taken.shape = [*taken.shape[:-1], len(own)]
        indices = gs.Constant(self._names.derive(tensor.name, "own_channels"), own)
        name = self._names.derive(taken.name, "gather")
        gather = gs.Node("Gather", name, {"axis": -1}, inputs=[tensor, indices], outputs=[taken])
        self.insertions.add(self._graph, walk.producer(tensor), [gather])
        return taken

    def _add_product(self, node: gs.Node, taken: gs.Tensor, channels: NDArray[np.int64]) -> None:
        """Let an Add make what the node made, of that and the product of the channels taken."""
        weight, result = node.inputs[1], node.outputs[0]

        def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
            return np.ascontiguousarray(rows_of(node, values)[channels])

        outputs = rows_of(node, np.empty(weight.shape, np.bool_)).shape[1]
        key = id(weight), bool(node.attrs.get("transB", 0)), b"own", channels.tobytes()
        if key not in self._made:
            rows = derived(weight._values, _rows, np.float32, (len(channels), outputs))
            self._made[key] = weight, constant(self._names.derive(weight.name, "own"), rows)
        label = self._names.derive(node.name or result.name, "own")
        names = [self._names.derive(result.name, suffix) for suffix in ("rest", "own")]
        addends = [dtypes.variable(name, dtypes.FLOAT, result) for name in names]
        product = gs.Node("MatMul", label, inputs=[taken, self._made[key][1]], outputs=[addends[1]])
        node.outputs[0] = addends[0]
        total = gs.Node("Add", self._names.derive(label, "add"), inputs=addends, outputs=[result])
        self.insertions.add(self._graph, node, [product, total])
