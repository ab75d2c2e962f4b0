"""Read the weights and biases of a quantized model's layer, and write tuned ones."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.finetune.round_bias import constant_scale, product_scale
from transforms.finetune.tune_layer import AS_IT_WAS, LayerSolution
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.grids import Grid
from transforms.graph.rewire import detach, position
from transforms.layers.matched_layer import Bias, MatchedLayer
from transforms.layers.stored_constant import StoredConstant, trace_constant
from transforms.runtime_workarounds import leave_out_zero_point_before


def current(layer: MatchedLayer) -> LayerSolution:
    """Return the present weights and biases of a layer."""
    packed = layer.layer.pack(layer.weight.values()).astype(np.float64)
    weights = packed.reshape(*packed.shape[:2], -1)
    biases = np.concatenate([_current_bias(user) for user in layer.users])
    return LayerSolution(AS_IT_WAS, weights, biases, layer.weight.parameters)


def _current_bias(layer: MatchedLayer) -> NDArray[np.float64]:
    bias = np.zeros(layer.layer.size[:2])
    if layer.bias is not None and layer.bias.stored is not None:
        bias += layer.bias.stored.values().astype(np.float64).reshape(bias.shape) * layer.bias.gain
    return bias


def write_layer(graph: gs.Graph, layer: MatchedLayer, tuned: LayerSolution, names: walk.Names) -> None:
    """Write weights, scale and biases of a candidate into a layer of a graph.

    A layer without bias gets one: int32 if its operands are integers, else float32; a MatMul gets an Add,
    unless its bias is 0. A bias that other nodes read is left unchanged, and the layer gets its own copy.
    """
    packed = tuned.weights.reshape(layer.layer.size)
    weight = layer.layer.unpack(packed).astype(np.float32)
    layer.weight.write(weight, names, layer.weight.grid_with(tuned.scale))
    for user, bias in zip(layer.users, np.split(tuned.bias, len(layer.users)), strict=True):
        if user.bias is not None:
            _write_bias(graph, user, user.bias, bias, names)


def _write_bias(
    graph: gs.Graph, layer: MatchedLayer, place: Bias, bias: NDArray[np.float64], names: walk.Names
) -> None:
    numbers = (bias / place.gain).reshape(-1)
    if place.is_extra and not bias.any():
        _remove_node(graph, layer, place)
        return
    if place.stored is None:
        add = _add_node if place.is_extra else _add_bias
        add(graph, layer, place, numbers, names)
        place.stored = trace_constant(graph, place.node, place.index, (), 0)
        return
    unshare_constant(graph, place.node, place.index, place.stored, names)
    stored = place.stored
    product = product_scale(layer, None)
    grid: Grid | None = None
    if product is not None:
        grid = Grid("int32", product, axis=int(np.argmax(stored.shape)) if product.shape else None)
    elif stored.grid is not None:
        grid = Grid(stored.grid.dtype, *constant_scale(stored, numbers))
    stored.write(numbers.astype(np.float32).reshape(stored.shape), names, grid)


def remove_bias(graph: gs.Graph, layer: MatchedLayer) -> None:
    """Remove the bias that was added to a layer as its last input, if there is one."""
    place = layer.bias
    if place is None or place.stored is None:
        return
    dequant_nodes = place.stored.dequant_nodes
    graph.nodes[:] = [
        node for node in graph.nodes if all(node is not dequant_node for dequant_node in dequant_nodes)
    ]
    while len(place.node.inputs) > place.index:
        place.node.inputs.pop()
    for node in dequant_nodes:
        detach(node)
    place.stored = None


def _add_node(
    graph: gs.Graph, layer: MatchedLayer, bias: Bias, numbers: NDArray[np.float64], names: walk.Names
) -> None:
    """Insert an Add after a MatMul; consumers of its output read the sum, under the name of the output."""
    product = layer.node.outputs[0]
    raw = gs.Variable(names.derive(product.name, "raw"), product.dtype, product.shape)
    shape = layer.layer.channel_shape(len(product.shape))
    constant = gs.Constant(
        names.derive(layer.weight.source.name, "bias"), numbers.astype(np.float32).reshape(shape)
    )
    walk.replace_output(layer.node, product, raw)
    bias.node = gs.Node("Add", names.derive(product.name, "Add"), inputs=[raw, constant], outputs=[product])
    graph.nodes.insert(position(graph, layer.node) + 1, bias.node)
    leave_out_zero_point_before(graph, layer.node.inputs[1 - layer.layer.index])


def _remove_node(graph: gs.Graph, layer: MatchedLayer, bias: Bias) -> None:
    """Remove the Add after a MatMul, if it exists."""
    if bias.stored is None:
        return
    made = bias.node.outputs[0]
    graph.nodes[:] = [node for node in graph.nodes if node is not bias.node]
    detach(bias.node)
    walk.replace_output(layer.node, layer.node.outputs[0], made)
    bias.node, bias.stored = layer.node, None


def _add_bias(
    graph: gs.Graph, layer: MatchedLayer, bias: Bias, numbers: NDArray[np.float64], names: walk.Names
) -> None:
    weight = layer.node.inputs[layer.layer.index]
    product = product_scale(layer, None)
    shape = layer.layer.channel_shape(2) if layer.node.op == "Gemm" else -1  # a column for a left weight
    while len(bias.node.inputs) < bias.index:
        bias.node.inputs.append(gs.Variable.empty())
    if product is None:
        values = numbers.astype(np.float32).reshape(shape)
        tensor: gs.Tensor = gs.Constant(names.derive(weight.name, "bias"), values)
    else:
        integers = np.rint(numbers / product.astype(np.float64)).astype(np.int32).reshape(shape)
        stored = gs.Constant(names.derive(weight.name, "bias_quantized"), integers)
        inputs = [
            stored,
            gs.Constant(names.derive(weight.name, "bias_scale"), product),
            gs.Constant(names.derive(weight.name, "bias_zero_point"), np.zeros(product.shape, np.int32)),
        ]
        tensor = gs.Variable(names.derive(weight.name, "bias"), np.float32, integers.shape)
        domain = layer.weight.dequant_nodes[-1].domain
        attrs = {"axis": 0} if product.shape else {}
        node = gs.Node(
            "DequantizeLinear", names.derive(tensor.name, "DequantizeLinear"), attrs, inputs, [tensor], domain
        )
        graph.nodes.insert(position(graph, layer.node), node)
    if len(bias.node.inputs) > bias.index:
        bias.node.inputs[bias.index] = tensor
    else:
        bias.node.inputs.append(tensor)


def unshare_constant(
    graph: gs.Graph, node: gs.Node, index: int, stored: StoredConstant, names: walk.Names
) -> bool:
    """Make a node read its stored input ``index`` from a copy; return whether that was needed.

    It is needed if other nodes read the constant or its dequantized values. Scales stay shared.
    """
    if all(len(walk.uses(tensor)) == 1 for tensor in stored.tensors):
        return False
    tensor: gs.Tensor = gs.Constant(names.derive(stored.source.name, "own"), load(stored.source))
    stored.source = tensor
    dequant_nodes = []
    for old in stored.dequant_nodes:
        dequantized = old.outputs[0]
        target = gs.Variable(names.derive(dequantized.name, "own"), dequantized.dtype, dequantized.shape)
        inputs = [tensor, *old.inputs[1:]]
        name = names.derive(old.name or dequantized.name, "own")
        dequant_nodes.append(gs.Node(old.op, name, dict(old.attrs), inputs, [target], domain=old.domain))
        tensor = target
    place = position(graph, node)
    graph.nodes[place:place] = dequant_nodes
    stored.dequant_nodes = dequant_nodes
    node.inputs[index] = tensor
    return True
