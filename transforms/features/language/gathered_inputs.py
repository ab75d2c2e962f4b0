"""Gather the inputs of products in the order of their weights' blocks."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dtypes, walk

Order: TypeAlias = NDArray[np.intp]


class GatheredInputs:
    """The Gathers of one graph that reorder the last axis of a tensor, one for each tensor and order."""

    def __init__(self, names: walk.Names) -> None:
        """Start without any Gather."""
        self._names = names
        self._gathered: dict[tuple[int, bytes], gs.Tensor] = {}

    def give(self, node: gs.Node, order: Order) -> list[gs.Node]:
        """Let a node read its first input in an order; return the nodes to insert before it."""
        data, index = node.inputs[0], order.astype(np.int64)
        key = id(data), index.tobytes()
        nodes: list[gs.Node] = []
        if key not in self._gathered:
            gathered = gs.Variable(self._names.derive(data.name, "in_order"), dtypes.FLOAT, data.shape)
            inputs = [data, gs.Constant(self._names.derive(data.name, "order"), index)]
            name = self._names.derive(data.name, "Gather")
            nodes = [gs.Node("Gather", name, {"axis": -1}, inputs, [gathered])]
            self._gathered[key] = gathered
        node.inputs[0] = self._gathered[key]
        return nodes
