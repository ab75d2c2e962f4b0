"""A converted model without its roundings: what is left has to be the float model again, up to float32."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from tests.attack.graphs.interpret import graphs

_QUANTIZE = {"QuantizeLinear": "DequantizeLinear", "ExtendedQuantizeLinear": "ExtendedDequantizeLinear"}
_WHOLE = ("BFPQuantizeDequantize", "MXQuantizeDequantize")


def strip(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Return a copy in which each pair of nodes that rounds hands its input on, and how many there were."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    count = 0
    sources: dict[str, str] = {}
    for graph in graphs(copy.graph):
        nodes = []
        for node in graph.node:
            if _narrows(node):
                sources[node.output[0]] = node.input[0]
                count += 1
            elif node.op_type in _WHOLE or (node.input and node.input[0] in sources and _widens(node)):
                source = sources.get(node.input[0], node.input[0])
                nodes.append(helper.make_node("Identity", [source], [node.output[0]]))
                count += node.op_type in _WHOLE
            else:
                nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
    return copy, count


def _narrows(node: onnx.NodeProto) -> bool:
    return node.op_type in _QUANTIZE or (node.op_type == "Cast" and _to(node) == TensorProto.BFLOAT16)


def _widens(node: onnx.NodeProto) -> bool:
    return node.op_type in _QUANTIZE.values() or (node.op_type == "Cast" and _to(node) == TensorProto.FLOAT)


def _to(node: onnx.NodeProto) -> int:
    return next(a.i for a in node.attribute if a.name == "to")
