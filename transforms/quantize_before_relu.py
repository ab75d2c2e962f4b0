"""A layer's result quantized in front of its Relu or Clip, too, on the scale behind it, for ONNX Runtime.

The runtime's CPU provider computes a Conv in integers only if a QuantizeLinear reads what it makes. With
an unsigned range it takes a Relu in between out of the way itself; with a symmetric one it can not, and
computes in float.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})


def quantize_before_relu(graph: gs.Graph) -> int:
    """Put the quantization that alone reads a Relu or Clip in front of it as well; return for how many.

    No number changes. Quantizing never decreases and leaves alone what lies on its grid, and neither Relu nor
    Clip decreases or moves what is within its bounds; so a number within them is quantized once and stays,
    and one beyond them ends on the integer next to the bound either way.

    Does nothing if the Relu or Clip does not directly follow a dot product or an Add that nothing else
    reads, if anything but one QuantizeLinear with a scale for the whole tensor reads its result, and in
    front of bounds that are computed.
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
    """Return the one quantization behind a Relu or Clip behind a layer, None if it is not like that."""
    if node.op not in ("Relu", "Clip") or node.domain not in STANDARD_DOMAINS or not _has_fixed_bounds(node):
        return None
    source, result = node.inputs[0], node.outputs[0]
    makers, uses = [maker.op for maker in source.inputs], walk.uses(result)
    if len(walk.uses(source)) != 1 or walk.is_output(source, graph) or not _LAYERS.issuperset(makers):
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
