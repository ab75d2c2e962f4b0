"""Which layers are worth integer weights in a model that rounds activations at run time."""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from transforms.graph.dot_products import is_of_outliers, weight_index

PRODUCTS = frozenset({"MatMul", "Gemm"})
"""Operators for which ONNX Runtime is faster so; a convolution would be slower than in float."""

LEAST_NUMBERS = 1 << 10
"""Of a weight: for fewer, nodes and scales take as many bytes as integers save, and more time."""


def pays_in_integers(node: gs.Node) -> bool:
    """Return whether a layer is worth it: not where it has little to store, nor as a product of outliers."""
    index = weight_index(node)
    is_small = index is not None and math.prod(node.inputs[index].shape) < LEAST_NUMBERS
    return not is_small and not is_of_outliers(node)
