"""Writing tuned weights and biases into the layers of a quantized model."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms import walk
from transforms.bias_grid import constant_scale, product_scale
from transforms.match_layers import Bias, MatchedLayer
from transforms.stored import find
from transforms.tune_layer import Candidate


def write_layer(graph: gs.Graph, layer: MatchedLayer, tuned: Candidate, names: walk.Names) -> None:
    """Put weights, scale and bias of a candidate into the layer's place in a graph.

    A layer without bias gets one: int32 where its operands are integers, float32 elsewhere.
    """
    packed = tuned.weights.reshape(layer.layer.size)
    weight = layer.layer.unpack(packed).astype(np.float32)
    layer.weight.write(weight, names, tuned.scale)
    if layer.bias is None:
        return
    numbers = (tuned.bias / layer.bias.gain).reshape(-1)
    if layer.bias.stored is None:
        _add_bias(graph, layer, layer.bias, numbers, names)
        layer.bias.stored = find(graph, layer.bias.node, layer.bias.index, (), 0)
        return
    stored = layer.bias.stored
    scale = product_scale(layer, None)
    if scale is not None:
        stored.axis = len(stored.shape) - 1 if scale.shape else None
    elif stored.is_integer:
        scale, stored.zero_point = constant_scale(stored.zero_point, numbers)
        stored.axis = None
    stored.write(numbers.astype(np.float32).reshape(stored.shape), names, scale)


def _add_bias(
    graph: gs.Graph, layer: MatchedLayer, bias: Bias, numbers: NDArray[np.float64], names: walk.Names
) -> None:
    weight = layer.node.inputs[layer.layer.index]
    product = product_scale(layer, None)
    while len(bias.node.inputs) < bias.index:
        bias.node.inputs.append(gs.Variable.empty())
    if product is None:
        tensor: gs.Tensor = gs.Constant(names.derive(weight.name, "bias"), numbers.astype(np.float32))
    else:
        integers = np.rint(numbers / product.astype(np.float64)).astype(np.int32)
        stored = gs.Constant(names.derive(weight.name, "bias_quantized"), integers)
        inputs = [
            stored,
            gs.Constant(names.derive(weight.name, "bias_scale"), product),
            gs.Constant(names.derive(weight.name, "bias_zero_point"), np.zeros(product.shape, np.int32)),
        ]
        tensor = gs.Variable(names.derive(weight.name, "bias"), np.float32, integers.shape)
        domain = layer.weight.chain[-1].domain
        attrs = {"axis": 0} if product.shape else {}
        node = gs.Node(
            "DequantizeLinear", names.derive(tensor.name, "DequantizeLinear"), attrs, inputs, [tensor], domain
        )
        place = next(i for i, one in enumerate(graph.nodes) if one is layer.node)
        graph.nodes.insert(place, node)
    if len(bias.node.inputs) > bias.index:
        bias.node.inputs[bias.index] = tensor
    else:
        bias.node.inputs.append(tensor)
