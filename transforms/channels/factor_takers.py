"""Layers that sum over the channels of a tensor, and nodes that can divide these channels at no cost."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.layer_pairs import PairFinder, Scaling
from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS


def _multiplies(node: gs.Node, tensor: gs.Tensor) -> bool:
    """Return whether a node multiplies the rows of a tensor with a constant float32 matrix.

    MatMul, and Gemm unless it transposes the rows.
    """
    if (
        node.op not in ("MatMul", "Gemm")
        or node.domain not in STANDARD_DOMAINS
        or node.inputs[0] is not tensor
    ):
        return False
    weight = node.inputs[1]
    if not isinstance(weight, gs.Constant) or not dtypes.is_type(weight, dtypes.FLOAT):
        return False
    return len(weight.shape) == 2 and 0 not in weight.shape and not node.attrs.get("transA", 0)


def layers_on(tensor: gs.Tensor) -> list[gs.Node]:
    """Return the nodes that multiply a tensor with constant matrices; none for constants."""
    if isinstance(tensor, gs.Constant) or not dtypes.is_type(tensor, dtypes.FLOAT):
        return []
    return [node for node, index in walk.uses(tensor) if index == 0 and _multiplies(node, tensor)]


def channels_of(node: gs.Node) -> int:
    """Return over how many channels of its first operand such a node sums."""
    return int(node.inputs[1].shape[1 if node.attrs.get("transB", 0) else 0])


def rows_of(node: gs.Node, values: np.ndarray) -> np.ndarray:
    """Return a view of the weight of such a node with its channels on the first axis."""
    return values.T if node.attrs.get("transB", 0) else values


class FactorTakers:
    """Finds the nodes of a graph that can divide the channels of a tensor at no cost."""

    def __init__(self, graph: gs.Graph) -> None:
        """Note what must not change in the graph."""
        self._graph, self._finder = graph, PairFinder(graph)
        self._members = {id(node) for node in graph.nodes}

    def factors(self, tensor: gs.Tensor, layers: int) -> list[int]:
        """Return the inputs of the node that makes a tensor, by which it can divide its channels.

        It is a LayerNormalization over the last axis, or a Mul with a constant for each channel, and nothing
        but so many layers reads the tensor.
        """
        node = walk.producer(tensor)
        if node is None or node.domain not in STANDARD_DOMAINS or walk.is_output(tensor, self._graph):
            return []
        if len(walk.uses(tensor)) != layers or id(node) not in self._members:
            return []
        return _factors(node)

    def scaling(self, tensor: gs.Tensor) -> Scaling | None:
        """Return the layer that can divide the channels of what one layer reads, and nothing else."""
        consumers = layers_on(tensor)
        return self._finder.scales_input(self._graph, consumers[0]) if len(consumers) == 1 else None

    def take(self, tensor: gs.Tensor, layers: int) -> bool:
        """Return whether a node can divide the channels of a tensor that so many layers read."""
        return bool(self.factors(tensor, layers)) or self.scaling(tensor) is not None


def _factors(node: gs.Node) -> list[int]:
    """Return the inputs of a node that hold a number for each channel of the last axis, all of its own."""
    if node.op == "LayerNormalization":
        axes, last = node.attrs.get("axis", -1), node.outputs[0].shape
        is_last = axes == -1 or (last is not None and axes == len(last) - 1)
        found = [i for i in (1, 2) if i < len(node.inputs) and not node.inputs[i].is_empty()]
        return found if is_last and all(_is_vector(node.inputs[i]) for i in found) else []
    if node.op == "Mul" and node.outputs[0].shape:
        channels = node.outputs[0].shape[-1]
        found = [i for i in (0, 1) if _is_vector(node.inputs[i]) and node.inputs[i].shape[-1] == channels]
        return found[:1]
    return []


def _is_vector(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and dtypes.is_type(tensor, dtypes.FLOAT) and len(tensor.shape) == 1
