"""Rounding to bfloat16 written as Casts, which every runtime supports, instead of our own operators."""

from __future__ import annotations

import onnx_graphsurgeon as gs

import ops
from transforms.graph import dtypes, walk
from transforms.graph.qdq import EXTENDED
from transforms.graph.rewire import detach, forget_domains
from transforms.plan.rounding_plan import is_neutral

OPSET = 13
"""First opset in which Cast supports bfloat16."""

_TYPES = (dtypes.FLOAT, dtypes.BFLOAT16), (dtypes.BFLOAT16, dtypes.FLOAT)
_TARGETS = dict(zip(EXTENDED, _TYPES, strict=True))
_DOMAINS = (ops.DOMAIN, ops.AMD_DOMAIN)


def qdq_to_cast(graph: gs.Graph) -> int:
    """Replace extended quantization nodes that only round to bfloat16 by Casts; return how many.

    These are ExtendedQuantizeLinear and ExtendedDequantizeLinear of type bfloat16 with scale 1 and zero point
    0, also in bodies. Every number stays the same bit for bit: both round half to even, overflow to infinity,
    and keep NaN and subnormals. Imports of domains without nodes are dropped. Does nothing to float16, where
    the operator saturates and a Cast overflows, to other types, scales and zero points, and to computed ones.
    Raises ValueError below opset 13, the first in which Cast supports bfloat16.
    """
    roundings = {id(node) for node in walk.nodes(graph) if _is_rounding(node)}
    if roundings and graph.opset < OPSET:
        raise ValueError(f"Cast makes bfloat16 from opset {OPSET} on, the model has {graph.opset}")
    for inner in walk.graphs(graph):
        inner.nodes = [_cast(node) if id(node) in roundings else node for node in inner.nodes]
    if roundings:
        forget_domains(graph, set(_DOMAINS))
    return len(roundings)


def _is_rounding(node: gs.Node) -> bool:
    if node.op not in _TARGETS or node.domain not in _DOMAINS or len(node.inputs) != 3:
        return False
    source, scale, zero_point = node.inputs
    if not dtypes.is_type(source, _TARGETS[node.op][0]) or not dtypes.is_type(zero_point, dtypes.BFLOAT16):
        return False
    return is_neutral(scale, zero_point)


def _cast(node: gs.Node) -> gs.Node:
    source, target, (_, element) = node.inputs[0], node.outputs[0], _TARGETS[node.op]
    detach(node)
    return gs.Node("Cast", node.name, {"to": element}, [source], [target])
