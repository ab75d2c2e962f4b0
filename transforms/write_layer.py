"""Writing tuned weights and biases into the layers of a quantized model."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms import dtypes, walk
from transforms.constants import load
from transforms.match_layers import Bias, MatchedLayer
from transforms.stored import find
from transforms.tune_layer import Candidate, constant_scale

_DEQUANTIZE = ("DequantizeLinear",)


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
    scale = None
    if stored.is_integer:
        product = _product(layer)
        if stored.format is not None and stored.format.name == "int32" and product is not None:
            scale = product
            stored.axis = len(stored.shape) - 1 if scale.shape else None
        else:
            one, zero = constant_scale(stored.zero_point, numbers)  # type: ignore[arg-type]
            scale = np.asarray(one, np.float32)
            stored.zero_point = np.asarray(zero).astype(stored.zero_point.dtype)  # type: ignore[union-attr]
            stored.axis = None
    stored.write(numbers.astype(np.float32).reshape(stored.shape), names, scale)


def input_scale(layer: MatchedLayer) -> float | None:
    """Return the scale of a layer's integer inputs; None where they are no integers of one scale."""
    producer = layer.source.inputs[0] if layer.source.inputs else None
    if (
        producer is None
        or producer.op != "DequantizeLinear"
        or not isinstance(producer.inputs[1], gs.Constant)
    ):
        return None
    scale = load(producer.inputs[1])
    return (
        float(scale.reshape(()))
        if scale.size == 1 and dtypes.is_type(producer.inputs[1], dtypes.FLOAT)
        else None
    )


def _product(layer: MatchedLayer) -> NDArray[np.float32] | None:
    x_scale = input_scale(layer)
    if x_scale is None or layer.weight.scale is None:
        return None
    return np.asarray(np.float32(x_scale) * layer.weight.scale, np.float32)


def _add_bias(
    graph: gs.Graph, layer: MatchedLayer, bias: Bias, numbers: NDArray[np.float64], names: walk.Names
) -> None:
    weight = layer.node.inputs[layer.layer.index]
    product = _product(layer)
    while len(bias.node.inputs) < bias.index:
        bias.node.inputs.append(gs.Variable.empty())
    if product is None or not layer.weight.is_integer:
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
