"""Which layers are worth integer weights in a model that rounds activations at run time."""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from transforms.features.dynamic.rounding import rounds_rows
from transforms.graph.dot_products import is_dot_product, is_of_outliers, weight_index
from transforms.scheme import Scheme

PRODUCTS = frozenset({"MatMul", "Gemm"})
"""Operators for which ONNX Runtime is faster so; a convolution would be slower than in float."""

LEAST_NUMBERS = 1 << 10
"""Of a weight: for fewer, nodes and scales take as many bytes as integers save, and more time."""

LEAST_WIDTH = 56
"""Of K N / (K + N), of a product [rows, K] x [K, N] whose rows have ranges of their own.

Integers save time that grows by K N, rounding and scaling rows takes some that grows by K + N. With 256 rows,
one thread, AVX-512 with VNNI, they take 1.50 of float's time at 64 x 64 (32), 1.15 at 96 x 96 (48), 0.94 at
128 x 128 (64), 0.99 at 64 x 256 and 1.18 at 256 x 64 (51), 0.71 at 192 x 192 (96).
"""


def pays_in_integers(node: gs.Node) -> bool:
    """Return whether a layer is worth it: not where it has little to store, nor as a product of outliers."""
    index = weight_index(node)
    is_small = index is not None and math.prod(node.inputs[index].shape) < LEAST_NUMBERS
    return not is_small and not is_of_outliers(node)


def multiplies_integers(node: gs.Node, scheme: Scheme) -> bool:
    """Return whether a layer is faster if it rounds its input at run time than with its weight alone stored.

    The scheme says whether rows or tensors are rounded. A single row is one tensor.
    """
    if node.op not in PRODUCTS or not is_dot_product(node):
        return False
    index = weight_index(node)
    if index is None or not rounds_rows(node.inputs[0], scheme.dynamic_ranges):
        return index is not None
    *_, rows, columns = node.inputs[index].shape
    return rows * columns >= LEAST_WIDTH * (rows + columns)
