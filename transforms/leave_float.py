"""Take the quantizations around a node away, so that a runtime computes it in float."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.rewire import position, remove_unused

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_CLIP_WITH_INPUTS = 11  # opset


def leave_float(graph: gs.Graph, output: str) -> int:
    """Remove pairs of QuantizeLinear and DequantizeLinear at the node that makes ``output``.

    Returns how many tensors are float now. A kernel for integers needs quantized numbers on both sides: what
    the node makes is left in float, or, if that is not a quantized tensor already, what it reads. Stored
    weights keep their format, and a Clip cuts off what the quantization did: a Relu may be part of it. Does
    nothing to pairs of which an output of the graph is one end, for a node in a body, and if no node makes a
    tensor of that name.
    """
    node = next((one for one in graph.nodes if any(t.name == output for t in one.outputs)), None)
    if node is None:
        return 0
    ends = walk.outputs(graph)
    made = sum(_open_after(graph, tensor, ends) for tensor in list(node.outputs))
    return made or sum(_open_before(graph, tensor, ends) for tensor in list(node.inputs))


def _open_after(graph: gs.Graph, tensor: gs.Tensor, ends: set[int]) -> int:
    """Give the float tensor to the consumers of what is dequantized of it."""
    quantizes = [node for node, place in walk.uses(tensor) if node.op == _QUANTIZE and place == 0]
    changed = False
    for quantize in quantizes:
        consumers = [node for node, place in walk.uses(quantize.outputs[0]) if place == 0]
        idle = [one for one in consumers if one.op == _DEQUANTIZE and id(one.outputs[0]) not in ends]
        if idle:
            source = _clipped(graph, quantize)
            for node in idle:
                walk.redirect(node.outputs[0], source)
            remove_unused(graph, idle)
            changed = True
    return int(changed)


def _open_before(graph: gs.Graph, tensor: gs.Tensor, ends: set[int]) -> int:
    node = walk.producer(tensor)
    if node is None or node.op != _DEQUANTIZE or id(tensor) in ends:
        return 0
    quantize = walk.producer(node.inputs[0])
    if quantize is None or quantize.op != _QUANTIZE:
        return 0
    walk.redirect(tensor, _clipped(graph, quantize))
    remove_unused(graph, [node])
    return 1


def _clipped(graph: gs.Graph, quantize: gs.Node) -> gs.Tensor:
    """Return what a QuantizeLinear reads, clipped to the numbers that it represents if they are known."""
    source, bounds = quantize.inputs[0], _bounds(graph, quantize)
    if bounds is None:
        return source
    names = walk.Names(graph)
    clipped = gs.Variable(names.derive(source.name, "clipped"), source.dtype, source.shape)
    name, inputs, attrs = names.derive(clipped.name, "Clip"), [source], {}
    if graph.opset < _CLIP_WITH_INPUTS:
        attrs = {"min": float(bounds[0]), "max": float(bounds[1])}
    else:
        inputs += [gs.Constant(names.derive(clipped.name, "bound"), bound) for bound in bounds]
    node = gs.Node("Clip", name, attrs, inputs, [clipped])
    graph.nodes.insert(position(graph, quantize), node)
    return clipped


def _bounds(graph: gs.Graph, quantize: gs.Node) -> tuple[Float32Array, Float32Array] | None:
    """Return the least and the largest number of a tensor with one scale, None of another."""
    known = Constants(graph)
    parts = [known.values(tensor) for tensor in quantize.inputs[1:]]
    if len(parts) < 2 or any(part is None or part.size != 1 for part in parts):
        return None
    scale, zero_point = (np.asarray(part).reshape(()) for part in parts)
    if scale.dtype != np.float32 or zero_point.dtype.kind not in "iu":
        return None
    limits = np.iinfo(zero_point.dtype)
    low, high = ((end - int(zero_point)) * scale for end in (limits.min, limits.max))
    return np.asarray(low, np.float32), np.asarray(high, np.float32)
