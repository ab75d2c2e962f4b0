"""Rewrites of quantized models for what ONNX Runtime gets wrong, computes in float without need, or slowly.

Each is exact: the model computes the same bits by the definitions of ONNX. Versions are those in which each
was seen.
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
_MOVED_BEHIND = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool"})
"""Operators that move numbers alone, after which the runtime moves a DequantizeLinear."""

_ROUNDED_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Layers whose float weights the runtime rounds between integers."""

_FIRST_SUM = 8  # opset
_FIRST_OPSET = 21  # of the nodes whose zero points it gets wrong
_GRID = 2  # a scale and a zero point


def _pair(
    source: gs.Tensor, low: gs.Tensor, high: gs.Tensor, like: gs.Node, labels: tuple[str, str]
) -> list[gs.Node]:
    """Return the nodes that quantize a tensor and dequantize it, on the grid of a node like them."""
    grid, domain = like.inputs[1:], like.domain
    return [
        gs.Node(QUANTIZE_LINEAR, labels[0], inputs=[source, *grid], outputs=[low], domain=domain),
        gs.Node(DEQUANTIZE_LINEAR, labels[1], inputs=[low, *grid], outputs=[high], domain=domain),
    ]


def leave_out_biases(graph: gs.Graph) -> int:
    """Take the bias and ``beta`` from Gemm nodes with a ``beta`` of 0, in all bodies; return from how many.

    ONNX Runtime does not read it: infinities and NaN in it reach nothing. What was made for it alone is
    removed. From opset 11 on, before which a Gemm has no other number of inputs than three.
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
    """Take attributes from AveragePool nodes that compute the same without; return from how many.

    Dilations of 1, and the count of pads where there are none but windows may reach beyond the end. Version
    1.32 puts an AveragePool between integers of 8 bits into an operator of its own. That has no dilations:
    the runtime hands the attribute on all the same, and refuses the model. Where it counts pads and rounds
    the number of windows up, it divides what the last ones sum up by the size of the whole kernel.
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

    Only from opset 21 on, and if the numbers are read by a Reshape, Transpose, Squeeze, Unsqueeze, Slice or
    MaxPool with an output that is not quantized again, or by a MatMul whose result an Add reads, before which
    the runtime inserts a Reshape. Version 1.31 moves the DequantizeLinear after such operators, but gives it
    a zero point of type uint8, and refuses the model.
    """
    walk.check_graph(graph)
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
    zero_point = node.inputs[2] if onnx_op(node) == DEQUANTIZE_LINEAR and len(node.inputs) > 2 else None
    if not isinstance(zero_point, gs.Constant) or zero_point.dtype != np.int8:
        return False
    return not np.any(zero_point.values)


def _is_moved(tensor: gs.Tensor) -> bool:
    for node in tensor.outputs:
        consumers = node.outputs[0].outputs
        is_quantized = bool(consumers) and all(consumer.op == QUANTIZE_LINEAR for consumer in consumers)
        if node.op in _MOVED_BEHIND and not is_quantized:
            return True
        if node.op == "MatMul" and any(consumer.op == "Add" for consumer in consumers):
            return True
    return False


def quantize_before_relu(graph: gs.Graph) -> int:
    """Repeat the quantization that alone reads a Relu or Clip before it; return for how many.

    The runtime's CPU provider computes a Conv in integers only if a QuantizeLinear reads its output. It
    removes a Relu in between if the range is unsigned; if the range is symmetric it cannot, and computes in
    float. No number changes. Quantizing is monotonic and keeps numbers on its grid, and Relu and Clip are
    monotonic and keep numbers within their bounds; so a number within them is quantized once and stays, and
    one beyond them ends on the integer nearest to the bound either way.

    Does nothing unless the Relu or Clip directly follows a dot product or an Add that has no other consumer,
    unless its only consumer is one QuantizeLinear with a scale for the whole tensor, and if its bounds are
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
    """Return the one quantization after a Relu or Clip after a layer, or None."""
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
    """Put a pair of nodes of the same grid after what moves integers into a body; return how many.

    The numbers are on the grid: the model computes the same bits. Version 1.32.0 takes integers through nodes
    that move numbers alone, from a DequantizeLinear to what reads the result, to quantize it there again.
    Where a body of that node reads it, and the node has not got it as an input, the runtime looks for the
    input after the last one and aborts. A tensor that a DequantizeLinear makes is left alone.
    """
    names, insertions, count = walk.Names(graph), Insertions(), 0
    every = walk.outputs(graph)
    for inner in walk.graphs(graph):
        members = {id(node) for node in inner.nodes}
        ends = every - {id(tensor) for tensor in inner.outputs}
        for node in (node for node in inner.nodes if onnx_op(node) in _MOVED_BEHIND):
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
    """Put a LeakyRelu of slope 1, which changes nothing, behind layers that would lose it; return how many.

    Version 1.32 rounds the float weight of a Conv, ConvTranspose or Gemm to int8 by one scale for the whole
    tensor (WeightBiasQuantization) where its input comes from a DequantizeLinear and a QuantizeLinear alone
    reads its result, or a Relu or Clip before that, which it removes: a depthwise layer that was kept in
    float for its accuracy was at -0.5 instead of 30 dB so. The runtime computes the LeakyRelu along with the
    layer.
    """
    names, insertions, count = walk.Names(graph), Insertions(), 0
    for inner in walk.graphs(graph):
        for node in (node for node in inner.nodes if onnx_op(node) in _ROUNDED_LAYERS):
            if _is_between_integers(node, inner):
                made = node.outputs[0]
                same = dtypes.variable(names.derive(made.name, "float"), dtypes.FLOAT, made)
                walk.redirect(made, same)
                label = names.derive(node.name or made.name, "float")
                insertions.add(inner, node, [gs.Node("LeakyRelu", label, {"alpha": 1.0}, [made], [same])])
                count += 1
    insertions.place(graph)
    return count


def is_unchanging(node: gs.Node) -> bool:
    """Return whether a node is a LeakyRelu of slope 1."""
    return onnx_op(node) == "LeakyRelu" and bool(node.attrs.get("alpha") == 1)


def _is_between_integers(node: gs.Node, graph: gs.Graph) -> bool:
    """Return whether a layer with a stored float weight reads integers, and makes what is quantized alone."""
    before, weight, made = walk.producer(node.inputs[0]), node.inputs[1], node.outputs[0]
    if before is None or before.op != DEQUANTIZE_LINEAR or not walk.is_given(weight):
        return False
    while walk.is_read_once(made) and not walk.is_output(made, graph):
        (user,) = made.outputs
        if user.op == QUANTIZE_LINEAR:
            return True
        if onnx_op(user) not in ("Relu", "Clip"):
            return False
        made = user.outputs[0]
    return False


def sum_before_layernorm(graph: gs.Graph) -> int:
    """Write an Add that a LayerNormalization reads as a Sum, which is the same; return how many.

    Version 1.32 makes both one SkipLayerNormalization, whose CPU kernel takes three times as long as the two:
    93 instead of 30 microseconds for 32 rows of 384 numbers. Does nothing where the Add is of a constant, and
    before opset 8, in which a Sum got broadcasts.
    """
    walk.check_graph(graph)
    if graph.opset < _FIRST_SUM:
        return 0
    made = (walk.producer(node.inputs[0]) for node in walk.nodes(graph) if node.op == "LayerNormalization")
    adds = (node for node in made if node is not None and onnx_op(node) == "Add")
    found = {id(node): node for node in adds if not any(map(walk.is_given, node.inputs))}
    for node in found.values():
        node.op = "Sum"
    return len(found)


def _moved_from(node: gs.Node) -> gs.Node | None:
    """Return the DequantizeLinear whose numbers a node moves, by itself or after others; None without one."""
    made: gs.Node | None = node
    while made is not None and onnx_op(made) in _MOVED_BEHIND:
        made = walk.producer(made.inputs[0])
    if made is None or made.op != DEQUANTIZE_LINEAR or made.domain not in (*STANDARD_DOMAINS, RUNTIME_DOMAIN):
        return None
    grid = made.inputs[1:]
    is_stored = all(isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1 for tensor in grid)
    return made if is_stored and len(grid) == _GRID else None
