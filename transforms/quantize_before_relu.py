"""A layer's result quantized before its Relu or Clip, too, on the scale after it, for ONNX Runtime.

The runtime's CPU provider computes a Conv in integers only if a QuantizeLinear reads its output. It removes
a Relu in between if the range is unsigned; if the range is symmetric it cannot, and computes in float.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})


def quantize_before_relu(graph: gs.Graph) -> int:
    """Repeat the quantization that alone reads a Relu or Clip before it; return for how many.

    No number changes. Quantizing is monotonic and keeps numbers on its grid, and Relu and Clip are monotonic
    and keep numbers within their bounds; so a number within them is quantized once and stays, and one beyond
    them ends on the integer nearest to the bound either way.

    Does nothing unless the Relu or Clip directly follows a dot product or an Add that has no other reader,
    unless its only reader is one QuantizeLinear with a scale for the whole tensor, and if its bounds are
    computed.
    """
    names = walk.Names(graph)
    return sum(_quantize_in(inner, names) for inner in walk.graphs(graph))


def _quantize_in(graph: gs.Graph, names: walk.Names) -> int:
    placed: list[gs.Node] = []
    before = len(graph.nodes)
    for node in graph.nodes:
        quantize = _quantization(node, graph)
        if quantize is not None:
            placed += _pair(node, quantize, names)
        placed.append(node)
    graph.nodes = placed
    return (len(placed) - before) // 2


def _quantization(node: gs.Node, graph: gs.Graph) -> gs.Node | None:
    """Return the one quantization after a Relu or Clip after a layer, or None."""
    if node.op not in ("Relu", "Clip") or node.domain not in STANDARD_DOMAINS or not _has_fixed_bounds(node):
        return None
    source, result = node.inputs[0], node.outputs[0]
    makers, uses = [maker.op for maker in source.inputs], walk.uses(result)
    if not walk.is_read_once(source) or walk.is_output(source, graph) or not _LAYERS.issuperset(makers):
        return None
    if not makers or len(uses) != 1 or walk.is_output(result, graph):
        return None
    user = uses[0][0]
    return user if user.op == _QUANTIZE and not user.inputs[1].shape else None


def _has_fixed_bounds(node: gs.Node) -> bool:
    return all(bound.is_empty() or isinstance(bound, gs.Constant) for bound in node.inputs[1:])


def _pair(node: gs.Node, quantize: gs.Node, names: walk.Names) -> list[gs.Node]:
    """Return the two nodes that a Relu or Clip reads its input through."""
    source = node.inputs[0]
    low = gs.Variable(names.derive(source.name, "quantized"), quantize.outputs[0].dtype, source.shape)
    high = dtypes.variable(names.derive(source.name, "dequantized"), dtypes.FLOAT, source)
    parameters = quantize.inputs[1:]
    ends = ((_QUANTIZE, source, low), (_DEQUANTIZE, low, high))
    node.inputs[0] = high
    return [
        gs.Node(
            op,
            names.derive(target.name, op),
            inputs=[start, *parameters],
            outputs=[target],
            domain=quantize.domain,
        )
        for op, start, target in ends
    ]
