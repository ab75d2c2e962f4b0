"""Zero points that ONNX Runtime fails on, left out if they are the default.

From opset 21 on, version 1.31 moves the DequantizeLinear of an int8 tensor after operators that move numbers,
but gives it a zero point of type uint8, and refuses the model.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS

_FIRST_OPSET = 21
MOVED_BEHIND = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool"})
"""Operators that move numbers alone, after which the runtime moves a DequantizeLinear."""


def leave_out_zero_points(graph: gs.Graph) -> int:
    """Remove the zero point of DequantizeLinear nodes of int8 if it is 0, the default.

    Only from opset 21 on, and if the numbers are read by a Reshape, Transpose, Squeeze, Unsqueeze, Slice or
    MaxPool with an output that is not quantized again, or by a MatMul whose result an Add reads, before which
    the runtime inserts a Reshape. Returns how many were removed.
    """
    if graph.opset < _FIRST_OPSET:
        return 0
    found = [node for node in walk.nodes(graph) if _is_at_zero(node) and _is_moved(node.outputs[0])]
    for node in found:
        del node.inputs[2]
    return len(found)


def leave_out_zero_point_before(graph: gs.Graph, tensor: gs.Tensor) -> None:
    """Do the same for what makes one tensor, after a MatMul that reads it got an Add."""
    made = walk.producer(tensor)
    if graph.opset >= _FIRST_OPSET and made is not None and _is_at_zero(made):
        del made.inputs[2]


def _is_at_zero(node: gs.Node) -> bool:
    if node.op != "DequantizeLinear" or node.domain not in STANDARD_DOMAINS or len(node.inputs) < 3:
        return False
    zero_point = node.inputs[2]
    known = isinstance(zero_point, gs.Constant) and zero_point.dtype == np.int8
    return known and not np.any(zero_point.values)


def _is_moved(tensor: gs.Tensor) -> bool:
    movers = [node for node in tensor.outputs if node.op in MOVED_BEHIND]
    return any(not _is_quantized(node.outputs[0]) for node in movers) or any(
        map(_becomes_gemm, tensor.outputs)
    )


def _becomes_gemm(node: gs.Node) -> bool:
    """Return whether the runtime may fuse a product and a sum, with a Reshape before them."""
    return node.op == "MatMul" and any(reader.op == "Add" for reader in node.outputs[0].outputs)


def _is_quantized(tensor: gs.Tensor) -> bool:
    return bool(tensor.outputs) and all(node.op == "QuantizeLinear" for node in tensor.outputs)
