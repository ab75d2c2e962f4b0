"""Take the quantizations around a node away, so that a runtime computes it in float."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.graph.rewire import remove_unused
from transforms.remove_qdq import clipped


def leave_float(graph: gs.Graph, output: str) -> int:
    """Remove pairs of QuantizeLinear and DequantizeLinear at the node that makes ``output``.

    Returns how many tensors are float now. A kernel for integers needs quantized numbers on both sides: what
    the node makes is left in float, or, if that is not a quantized tensor already, what it reads. Stored
    weights keep their format, and a Clip cuts off what the quantization did: a Relu may be part of it. Does
    nothing to pairs of which an output of the graph is one end, for a node in a body, and if no node makes a
    tensor of that name.
    """
    walk.check_graph(graph)
    node = next((one for one in graph.nodes if any(t.name == output for t in one.outputs)), None)
    if node is None:
        return 0
    ends = walk.outputs(graph)
    made = sum(_open_after(graph, tensor, ends) for tensor in list(node.outputs))
    return made or sum(_open_before(graph, tensor, ends) for tensor in list(node.inputs))


def _open_after(graph: gs.Graph, tensor: gs.Tensor, ends: set[int]) -> int:
    """Give the float tensor to the consumers of what is dequantized of it."""
    quantizes = [node for node, place in walk.uses(tensor) if node.op == QUANTIZE_LINEAR and place == 0]
    changed = False
    for quantize in quantizes:
        consumers = [node for node, place in walk.uses(quantize.outputs[0]) if place == 0]
        idle = [one for one in consumers if one.op == DEQUANTIZE_LINEAR and id(one.outputs[0]) not in ends]
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
