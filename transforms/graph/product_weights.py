"""The size of product weights in a model, which weight-only presets store in 8 bits."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product, is_operand
from transforms.graph.lazy_values import stored_bytes

LEAST = 4096
"""Bytes of a weight below which a DequantizeLinear takes more than the three quarters it saves."""


def product_weights(graph: gs.Graph) -> int:
    """Return the bytes of the float32 constants of dot products, each counted once."""
    weights = {
        id(tensor): tensor
        for node in walk.nodes(graph)
        if is_dot_product(node)
        for index, tensor in enumerate(node.inputs)
        if is_operand(node, index) and isinstance(tensor, gs.Constant)
    }
    floats = (tensor for tensor in weights.values() if dtypes.is_type(tensor, dtypes.FLOAT))
    sizes = (stored_bytes(tensor._values) for tensor in floats)
    return sum(size for size in sizes if size >= LEAST)
