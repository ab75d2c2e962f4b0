"""Removal of Relu and Clip nodes whose bounds the following quantization already applies."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

import ops
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants
from transforms.graph.qdq import EXTENDED_QUANTIZE, QUANTIZE_LINEAR
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS, detach, remove_unused
from transforms.graph.value_limits import rectifier_limits

_QUANTIZE_DOMAINS = {
    QUANTIZE_LINEAR: (*STANDARD_DOMAINS, RUNTIME_DOMAIN),
    EXTENDED_QUANTIZE: (ops.DOMAIN, ops.AMD_DOMAIN),
}

Bounds = tuple[np.float32, np.float32]


def fold_relu(graph: gs.Graph) -> int:
    """Remove each float32 Relu or Clip without effect on the integer quantizations after it; return how many.

    Quantization with a positive scale is monotonic. A lower bound therefore has no effect exactly if it is
    quantized to the lowest integer, and an upper bound if it is quantized to the highest: for a Relu, if the
    zero point is the lowest integer. Every result stays the same bit for bit, except for NaN, which a Clip
    may turn into a number. All consumers have to be nodes that quantize to integers.

    Does nothing if the result is an output of its graph or has another consumer, for bounds, scales or zero
    points that are computed, for scales that are not positive, and for quantization to floating-point types.
    """
    constants = Constants(graph)
    outputs = walk.outputs(graph)
    return sum(_fold_in(inner, constants, outputs) for inner in walk.graphs(graph))


def _fold_in(graph: gs.Graph, constants: Constants, outputs: set[int]) -> int:
    gone: set[int] = set()
    idle: list[gs.Node] = []
    for node in reversed(graph.nodes):
        if _is_idle(node, constants, outputs):
            walk.redirect(node.outputs[0], node.inputs[0])
            idle += [producer for bound in node.inputs[1:] for producer in bound.inputs]
            detach(node)
            gone.add(id(node))
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    remove_unused(graph, idle)
    return len(gone)


def _is_idle(node: gs.Node, constants: Constants, outputs: set[int]) -> bool:
    """Return whether all consumers of the node are quantize nodes that already apply its bounds."""
    bounds = _bounds(node, constants)
    if bounds is None or id(node.outputs[0]) in outputs:
        return False
    uses = walk.uses(node.outputs[0])
    return bool(uses) and all(_clips_at(user, bounds, constants) for user, _ in uses)


def _bounds(node: gs.Node, constants: Constants) -> Bounds | None:
    """Return the bounds of a Relu or Clip; None for another node and for bounds that are not constant."""
    limits = rectifier_limits(node, constants)
    if limits is None or not dtypes.is_type(node.inputs[0], dtypes.FLOAT):
        return None
    return np.float32(limits[0]), np.float32(limits[1])


def _clips_at(node: gs.Node, bounds: Bounds, constants: Constants) -> bool:
    """Return whether the node is a quantization to integers that applies the bounds itself."""
    if node.domain not in _QUANTIZE_DOMAINS.get(node.op, ()):
        return False
    scale, zero_point = constants.values(node.inputs[1]), None
    if len(node.inputs) > 2 and not node.inputs[2].is_empty():
        zero_point = constants.values(node.inputs[2])
    elif node.op == QUANTIZE_LINEAR and not node.attrs.get("output_dtype", 0):
        zero_point = np.array(0, np.uint8)
    if scale is None or zero_point is None or scale.dtype != np.float32:
        return False
    fmt = ops.FORMATS.get(str(zero_point.dtype))
    if fmt is None or not fmt.is_integer or not np.all(scale > 0):
        return False
    with np.errstate(over="ignore"):
        steps = (np.rint(bound / scale).astype(np.float64) for bound in bounds)
        low, high = (step + zero_point.astype(np.float64) for step in steps)  # before they are saturated
    return bool(np.all(low <= fmt.lowest) and np.all(high >= fmt.highest))
