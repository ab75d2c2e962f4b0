"""Keep keys and values of an encoder as integers in inputs and outputs; dequantize them for attentions.

Keys and values that a branch of an If computes for the first step are quantized in that branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.features.caches.passed_states import PASSES, PassedState
from transforms.graph import walk
from transforms.graph.rewire import drop, onnx_op, position

INT8 = np.dtype(np.int8)


def store_passed(
    graph: gs.Graph, state: PassedState, scale: Float32Array, axis: dict[str, int], names: walk.Names
) -> None:
    """Keep a state in int8, with scales along an axis, or a single scale if ``axis`` is empty."""
    grid = (
        gs.Constant(names.derive(state.name, "scale"), scale),
        gs.Constant(names.derive(state.name, "zero_point"), np.zeros(scale.shape, np.int8)),
    )
    writer = _Writer(state, grid, axis, names)
    if state.present is not None:
        writer.hand_out(graph, state.present)
    writer.read_taken(graph)
    if state.present is not None:
        _drop_unread(graph, state.present)


@dataclass(frozen=True)
class _Writer:
    """The state, its grid and names, for the nodes to write."""

    state: PassedState
    grid: tuple[gs.Constant, gs.Constant]
    axis: dict[str, int]
    names: walk.Names

    def hand_out(self, graph: gs.Graph, present: gs.Variable) -> None:
        """Change an output to integers; its float readers keep reading the tensor before."""
        stored = self.stored(graph, present)
        integers = gs.Variable(present.name, INT8, present.shape)
        present.name = self.names.derive(integers.name, "float")
        maker = walk.producer(stored)
        if maker is None:
            keep = gs.Node("Identity", self.names.derive(integers.name, "keep"), {}, [stored], [integers])
            graph.nodes.append(keep)
        else:
            walk.redirect(stored, integers)
            walk.replace_output(maker, stored, integers)
        graph.outputs = [integers if output is present else output for output in graph.outputs]

    def stored(self, graph: gs.Graph, tensor: gs.Tensor) -> gs.Tensor:
        """Return the integers of a tensor: the input's, those of an If, or newly quantized ones."""
        node = walk.producer(tensor)
        if tensor is self.state.past or (node is not None and onnx_op(node) in PASSES):
            return tensor if node is None else self.stored(graph, node.inputs[0])
        if node is not None and onnx_op(node) == "If":
            return self._chosen(graph, node, tensor)
        codes = gs.Variable(self.names.derive(tensor.name, "int8"), INT8, tensor.shape)
        label = self.names.derive(tensor.name, "quantize")
        quantize = gs.Node("QuantizeLinear", label, dict(self.axis), [tensor, *self.grid], [codes])
        graph.nodes.insert(0 if node is None else position(graph, node) + 1, quantize)
        return codes

    def _chosen(self, graph: gs.Graph, node: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
        """Let the branches of an If return integers, and dequantize them for its consumers."""
        place = next(i for i, output in enumerate(node.outputs) if output is tensor)
        for body in walk.bodies(node):
            result = self.stored(body, body.outputs[place])
            if result is self.state.past:  # a branch must return a tensor of its own
                returned = gs.Variable(self.names.derive(result.name, "kept"), INT8, result.shape)
                body.nodes.append(
                    gs.Node("Identity", self.names.derive(result.name, "keep"), {}, [result], [returned])
                )
                result = returned
            before = body.outputs[place]
            body.outputs[place] = result
            _drop_unread(body, before)
        codes = gs.Variable(self.names.derive(tensor.name, "int8"), INT8, tensor.shape)
        node.outputs[place] = codes
        if tensor.outputs:
            graph.nodes.insert(position(graph, node) + 1, self._dequantize(codes, tensor))
        return codes

    def read_taken(self, graph: gs.Graph) -> None:
        """Dequantize the input for its consumers, instead of a Cast from float16."""
        past = self.state.past
        numbers = gs.Variable(self.names.derive(past.name, "float"), np.dtype(np.float32), past.shape)
        if past.dtype != np.float32:
            for inner in walk.graphs(graph):
                casts = [node for node in inner.nodes if onnx_op(node) == "Cast" and node.inputs[0] is past]
                for cast in casts:
                    walk.redirect(cast.outputs[0], numbers)
                drop(inner, casts)
        past.dtype = INT8
        for node, index in walk.uses(past):
            is_kept = node.outputs and node.outputs[0].dtype == INT8 and onnx_op(node) == "Identity"
            if not is_kept and onnx_op(node) != "Shape":
                node.inputs[index] = numbers
        if numbers.outputs:
            graph.nodes.insert(0, self._dequantize(past, numbers))

    def _dequantize(self, codes: gs.Tensor, numbers: gs.Tensor) -> gs.Node:
        label = self.names.derive(codes.name, "dequantize")
        return gs.Node("DequantizeLinear", label, dict(self.axis), [codes, *self.grid], [numbers])


def _drop_unread(graph: gs.Graph, tensor: gs.Tensor) -> None:
    """Remove the nodes that passed on a tensor which nothing reads any more."""
    node, ends, node_ids = walk.producer(tensor), walk.outputs(graph), {id(member) for member in graph.nodes}
    while node is not None and id(node) in node_ids and onnx_op(node) in PASSES:
        if node.outputs[0].outputs or id(node.outputs[0]) in ends:
            return
        before = node.inputs[0]
        drop(graph, [node])
        node = walk.producer(before)
