"""Remove the quantizations around a node, so that a runtime computes it in float."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.graph.rewire import remove_unused
from transforms.remove_qdq import clipped


def leave_float(graph: gs.Graph, output: str) -> int:
    """Remove pairs of QuantizeLinear and DequantizeLinear at the producer of ``output``.

    Returns how many tensors became float. An integer kernel needs quantized inputs and outputs: the outputs
    of the node are left in float, or, if none was quantized, its inputs. Stored weights keep their format,
    and a Clip to the range of the integers replaces a quantization, since a Relu may be part of it. Does
    nothing to pairs with an output of the graph at one end, for a node in a body, and if no node has an
    output of that name.
    """
    walk.check_graph(graph)
    node = next((node for node in graph.nodes if any(t.name == output for t in node.outputs)), None)
    if node is None:
        return 0
    ends = walk.outputs(graph)
    count = sum(_open_after(graph, tensor, ends) for tensor in list(node.outputs))
    return count or sum(_open_before(graph, tensor, ends) for tensor in list(node.inputs))


def _open_after(graph: gs.Graph, tensor: gs.Tensor, ends: set[int]) -> int:
    """Let the consumers of a dequantized tensor read the float tensor instead."""
    quantizes = [node for node, place in walk.uses(tensor) if node.op == QUANTIZE_LINEAR and place == 0]
    changed = False
    for quantize in quantizes:
        consumers = [node for node, place in walk.uses(quantize.outputs[0]) if place == 0]
        idle = [
            consumer
            for consumer in consumers
            if consumer.op == DEQUANTIZE_LINEAR and id(consumer.outputs[0]) not in ends
        ]
        if idle:
            source = clipped(graph, quantize, Constants(graph), walk.Names(graph))
            for node in idle:
                walk.redirect(node.outputs[0], source)
            remove_unused(graph, idle)
            changed = True
    return int(changed)


def _open_before(graph: gs.Graph, tensor: gs.Tensor, ends: set[int]) -> int:
    node = walk.producer(tensor)
    if node is None or node.op != DEQUANTIZE_LINEAR or id(tensor) in ends:
        return 0
    quantize = walk.producer(node.inputs[0])
    if quantize is None or quantize.op != QUANTIZE_LINEAR:
        return 0
    walk.redirect(tensor, clipped(graph, quantize, Constants(graph), walk.Names(graph)))
    remove_unused(graph, [node])
    return 1
