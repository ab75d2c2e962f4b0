"""Rewrites of quantized models that avoid errors, needless float arithmetic and slow code of ONNX Runtime.

Each is exact: by the definitions of ONNX the model computes the same bits. Each names the version of the
runtime in which the problem was observed.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import bias
from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS, Insertions, onnx_op, remove_unused
from transforms.plan.integer_moves import counts_pads_of_cut_windows, has_pads, is_dense

_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})
_MOVED_ACROSS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool"})
"""Operators that only move numbers; the runtime moves a DequantizeLinear from before them to after them."""

_ROUNDED_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Layers whose float weights the runtime rounds between integers."""

_FIRST_SUM = 8  # opset
_FIRST_OPSET = 21  # of the nodes whose zero points the runtime gets wrong
_GRID = 2  # a scale and a zero point


def _pair(
    source: gs.Tensor, low: gs.Tensor, high: gs.Tensor, like: gs.Node, labels: tuple[str, str]
) -> list[gs.Node]:
    """Return nodes that quantize and dequantize a tensor, on the grid and in the domain of ``like``."""
    grid, domain = like.inputs[1:], like.domain
    return [
        gs.Node(QUANTIZE_LINEAR, labels[0], inputs=[source, *grid], outputs=[low], domain=domain),
        gs.Node(DEQUANTIZE_LINEAR, labels[1], inputs=[low, *grid], outputs=[high], domain=domain),
    ]


def leave_out_biases(graph: gs.Graph) -> int:
    """Remove the bias and ``beta`` of Gemm nodes with a ``beta`` of 0, in all bodies; return from how many.

    ONNX Runtime does not read such a bias: infinities and NaN in it have no effect. Nodes that only computed
    the bias are removed. From opset 11 on; before that a Gemm always has three inputs.
    """
    walk.check_graph(graph)
    count = 0
    for inner in walk.graphs(graph) if graph.opset >= 11 else ():
        for node in list(inner.nodes):
            is_ignored = onnx_op(node) == "Gemm" and node.attrs.get("beta", 1.0) == 0
            if is_ignored and (ignored := bias(node)) is not None:
                del node.inputs[2], node.attrs["beta"]
                remove_unused(inner, ignored.inputs)
                count += 1
    return count


def leave_out_pool_attributes(graph: gs.Graph) -> int:
    """Remove attributes of AveragePool nodes that compute the same without them; return from how many.

    These are dilations of 1, and ``count_include_pad`` of a node without pads whose windows may extend past
    the end. Version 1.32 replaces an AveragePool between 8-bit integers by an operator of its own, which has
    no dilations: the runtime still passes the attribute on, and refuses the model. With
    ``count_include_pad`` and the number of windows rounded up, the operator divides the sums of the last
    windows by the size of the whole kernel.
    """
    count = 0
    for node in (node for node in walk.nodes(graph) if onnx_op(node) == "AveragePool"):
        names = ["dilations"] if is_dense(node) and "dilations" in node.attrs else []
        if not has_pads(node) and counts_pads_of_cut_windows(node):
            names.append("count_include_pad")
        for name in names:
            del node.attrs[name]
        count += bool(names)
    return count


def leave_out_zero_points(graph: gs.Graph) -> int:
    """Remove the zero point of DequantizeLinear nodes of int8 if it is 0, the default; return how many.

    Only from opset 21 on, and if the consumer is a Reshape, Transpose, Squeeze, Unsqueeze, Slice or MaxPool
    whose output is not quantized again, or a MatMul before an Add, which gets a Reshape from the runtime.
    Version 1.31 moves the DequantizeLinear after such operators, but gives it a zero point of type uint8, and
    refuses the model.
    """
    walk.check_graph(graph)
    if graph.opset < _FIRST_OPSET:
        return 0
    nodes = [node for node in walk.nodes(graph) if _is_at_zero(node) and _is_moved(node.outputs[0])]
    for node in nodes:
        del node.inputs[2]
    return len(nodes)


def leave_out_zero_point_before(graph: gs.Graph, tensor: gs.Tensor) -> None:
    """Do the same for the producer of one tensor, after a MatMul that reads the tensor got an Add."""
    maker = walk.producer(tensor)
    if graph.opset >= _FIRST_OPSET and maker is not None and _is_at_zero(maker):
        del maker.inputs[2]


def _is_at_zero(node: gs.Node) -> bool:
    zero_point = node.inputs[2] if onnx_op(node) == DEQUANTIZE_LINEAR and len(node.inputs) > 2 else None
    if not isinstance(zero_point, gs.Constant) or zero_point.dtype != np.int8:
        return False
    return not np.any(zero_point.values)


def _is_moved(tensor: gs.Tensor) -> bool:
    for node in tensor.outputs:
        consumers = node.outputs[0].outputs
        is_quantized = bool(consumers) and all(consumer.op == QUANTIZE_LINEAR for consumer in consumers)
        if node.op in _MOVED_ACROSS and not is_quantized:
            return True
        if node.op == "MatMul" and any(consumer.op == "Add" for consumer in consumers):
            return True
    return False


def quantize_before_relu(graph: gs.Graph) -> int:
    """Repeat the quantization after a Relu or Clip also before it; return for how many.

    The runtime's CPU provider computes a Conv in integers only if a QuantizeLinear reads its output. It
    removes a Relu in between if the range is unsigned; with a symmetric range it cannot, and computes in
    float. No result changes: quantization is monotonic and preserves numbers on its grid, and Relu and Clip
    are monotonic and preserve numbers within their bounds. So a number within the bounds is rounded once, and
    one outside ends on the integer nearest to the bound either way.

    Does nothing unless the Relu or Clip directly follows a dot product or an Add that has no other consumer,
    and its only consumer is a QuantizeLinear with one scale for the whole tensor; nor if its bounds are
    computed.
    """
    names, count = walk.Names(graph), 0
    for inner in walk.graphs(graph):
        placed: list[gs.Node] = []
        for node in inner.nodes:
            quantize = _quantization(node, inner)
            if quantize is not None:
                source = node.inputs[0]
                low = gs.Variable(
                    names.derive(source.name, "quantized"), quantize.outputs[0].dtype, source.shape
                )
                high = dtypes.variable(names.derive(source.name, "dequantized"), dtypes.FLOAT, source)
                node.inputs[0] = high
                labels = names.derive(low.name, QUANTIZE_LINEAR), names.derive(high.name, DEQUANTIZE_LINEAR)
                placed += _pair(source, low, high, quantize, labels)
                count += 1
            placed.append(node)
        inner.nodes = placed
    return count


def _quantization(node: gs.Node, graph: gs.Graph) -> gs.Node | None:
    """Return the single QuantizeLinear after a Relu or Clip that follows a layer, or None."""
    if onnx_op(node) not in ("Relu", "Clip") or not all(map(walk.is_given, node.inputs[1:])):
        return None
    source, result = node.inputs[0], node.outputs[0]
    maker, uses = walk.producer(source), walk.uses(result)
    if maker is None or maker.op not in _LAYERS or not walk.is_read_once(source):
        return None
    if len(uses) != 1 or any(walk.is_output(tensor, graph) for tensor in (source, result)):
        return None
    user = uses[0][0]
    return user if user.op == QUANTIZE_LINEAR and not user.inputs[1].shape else None


def requantize_captured(graph: gs.Graph) -> int:
    """Repeat quantization after nodes that only move dequantized numbers, if a body captures their result.

    Returns how many pairs were inserted. The numbers are already on the grid, so the model computes the same
    bits. Version 1.32.0 moves a DequantizeLinear across nodes that only move numbers to their consumers, and
    quantizes the tensor again there. If a consumer reads the tensor in its body, and not as an input of its
    own, the runtime looks past the last input and aborts. A tensor that a DequantizeLinear outputs directly
    is left alone.
    """
    names, insertions, count = walk.Names(graph), Insertions(), 0
    every = walk.outputs(graph)
    for inner in walk.graphs(graph):
        members = {id(node) for node in inner.nodes}
        ends = every - {id(tensor) for tensor in inner.outputs}
        for node in (node for node in inner.nodes if onnx_op(node) in _MOVED_ACROSS):
            moved_tensor, back = node.outputs[0], _moved_from(node)
            captured = id(moved_tensor) in ends or any(
                id(consumer) not in members for consumer in moved_tensor.outputs
            )
            if back is not None and captured:
                moved = dtypes.variable(names.derive(moved_tensor.name, "moved"), dtypes.FLOAT, moved_tensor)
                low = gs.Variable(
                    names.derive(moved_tensor.name, "quantized"), back.inputs[0].dtype, moved_tensor.shape
                )
                node.outputs[0] = moved
                name = node.name or moved_tensor.name
                labels = names.derive(name, "quantize"), names.derive(name, "dequantize")
                insertions.add(inner, node, _pair(moved, low, moved_tensor, back, labels))
                count += 1
    insertions.place(graph)
    return count


def keep_weights_float(graph: gs.Graph) -> int:
    """Insert a LeakyRelu of slope 1, an identity, after layers whose float weights the runtime would round.

    Returns how many. Version 1.32 rounds the float weight of a Conv, ConvTranspose or Gemm to int8 with one
    scale for the whole tensor (WeightBiasQuantization) if its input comes from a DequantizeLinear and the
    only consumer of its result is a QuantizeLinear, or a Relu or Clip before one, which it removes. A
    depthwise layer that was kept in float for its accuracy had -0.5 instead of 30 dB as a consequence. The
    runtime fuses the LeakyRelu with the layer.
    """
    names, insertions, count = walk.Names(graph), Insertions(), 0
    for inner in walk.graphs(graph):
        for node in (node for node in inner.nodes if onnx_op(node) in _ROUNDED_LAYERS):
            if _is_between_integers(node, inner):
                result = node.outputs[0]
                same = dtypes.variable(names.derive(result.name, "float"), dtypes.FLOAT, result)
                walk.redirect(result, same)
                label = names.derive(node.name or result.name, "float")
                insertions.add(inner, node, [gs.Node("LeakyRelu", label, {"alpha": 1.0}, [result], [same])])
                count += 1
    insertions.place(graph)
    return count


def is_unchanging(node: gs.Node) -> bool:
    """Return whether a node is a LeakyRelu of slope 1."""
    return onnx_op(node) == "LeakyRelu" and bool(node.attrs.get("alpha") == 1)


def _is_between_integers(node: gs.Node, graph: gs.Graph) -> bool:
    """Return whether a layer has a constant float weight, a dequantized input and a quantized result."""
    before, weight, result = walk.producer(node.inputs[0]), node.inputs[1], node.outputs[0]
    if before is None or before.op != DEQUANTIZE_LINEAR or not walk.is_given(weight):
        return False
    while walk.is_read_once(result) and not walk.is_output(result, graph):
        (user,) = result.outputs
        if user.op == QUANTIZE_LINEAR:
            return True
        if onnx_op(user) not in ("Relu", "Clip"):
            return False
        result = user.outputs[0]
    return False


def sum_before_layernorm(graph: gs.Graph) -> int:
    """Replace an Add before a LayerNormalization by an equivalent Sum; return how many.

    Version 1.32 fuses both to a SkipLayerNormalization, whose CPU kernel takes three times as long as the
    two: 93 instead of 30 microseconds for 32 rows of 384 numbers. Does nothing if a constant is added, and
    below opset 8, the first in which Sum broadcasts.
    """
    walk.check_graph(graph)
    if graph.opset < _FIRST_SUM:
        return 0
    makers = (walk.producer(node.inputs[0]) for node in walk.nodes(graph) if node.op == "LayerNormalization")
    adds = (node for node in makers if node is not None and onnx_op(node) == "Add")
    sums = {id(node): node for node in adds if not any(map(walk.is_given, node.inputs))}
    for node in sums.values():
        node.op = "Sum"
    return len(sums)


def _moved_from(node: gs.Node) -> gs.Node | None:
    """Return the DequantizeLinear whose output a node moves, directly or after similar nodes, or None."""
    maker: gs.Node | None = node
    while maker is not None and onnx_op(maker) in _MOVED_ACROSS:
        maker = walk.producer(maker.inputs[0])
    if (
        maker is None
        or maker.op != DEQUANTIZE_LINEAR
        or maker.domain not in (*STANDARD_DOMAINS, RUNTIME_DOMAIN)
    ):
        return None
    grid = maker.inputs[1:]
    is_stored = all(isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1 for tensor in grid)
    return maker if is_stored and len(grid) == _GRID else None
