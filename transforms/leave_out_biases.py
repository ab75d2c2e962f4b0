"""The third input of a Gemm that multiplies it by 0, left out: it counts for nothing, whatever it holds."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import bias
from transforms.graph.rewire import STANDARD_DOMAINS, remove_unused


def leave_out_biases(graph: gs.Graph) -> int:
    """Take the bias and ``beta`` from Gemm nodes with a ``beta`` of 0, in all bodies; return from how many.

    ONNX Runtime does not read it: infinities and NaN in it reach nothing. What was made for it alone is
    removed. From opset 11 on, before which a Gemm has no other number of inputs than three.
    """
    if graph.opset < 11:
        return 0
    return sum(_leave_out(node, inner) for inner in walk.graphs(graph) for node in list(inner.nodes))


def _leave_out(node: gs.Node, owner: gs.Graph) -> bool:
    is_gemm = node.op == "Gemm" and node.domain in STANDARD_DOMAINS
    ignored = bias(node) if is_gemm and node.attrs.get("beta", 1.0) == 0 else None
    if ignored is None:
        return False
    del node.inputs[2], node.attrs["beta"]
    remove_unused(owner, ignored.inputs)
    return True
