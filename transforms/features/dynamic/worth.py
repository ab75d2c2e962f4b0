"""Tell which layers are worth integer weights in a model that rounds activations at run time."""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from transforms.features.dynamic.rounding import rounds_rows
from transforms.graph.dot_products import is_dot_product, is_of_outliers, weight_index
from transforms.scheme import Scheme

PRODUCTS = frozenset({"MatMul", "Gemm"})
"""Operators that run faster with integers in ONNX Runtime; convolutions would be slower than in float."""

LEAST_NUMBERS = 1 << 10
"""Elements of a weight below which nodes and scales take as many bytes as integers save, and more time."""

LEAST_WIDTH = 56
"""Least K N / (K + N) of a product [rows, K] x [K, N] whose rows have ranges of their own.

Integers save time in proportion to K N; rounding and scaling rows takes time in proportion to K + N. With
256 rows, one thread, AVX-512 with VNNI, integers take 1.50 of float's time at 64 x 64 (32), 1.15 at 96 x 96
(48), 0.94 at 128 x 128 (64), 0.99 at 64 x 256 and 1.18 at 256 x 64 (51), 0.71 at 192 x 192 (96).
"""


def pays_in_integers(node: gs.Node) -> bool:
    """Return whether integers pay for a layer: not for a small weight, nor for a product of outliers."""
    index = weight_index(node)
    is_small = index is not None and math.prod(node.inputs[index].shape) < LEAST_NUMBERS
    return not is_small and not is_of_outliers(node)


def multiplies_integers(node: gs.Node, scheme: Scheme) -> bool:
    """Return whether rounding the input at run time is faster than only storing the weight as integers.

    The scheme chooses rows or tensors. A single row counts as a tensor.
    """
    if node.op not in PRODUCTS or not is_dot_product(node):
        return False
    index = weight_index(node)
    if index is None or not rounds_rows(node.inputs[0], scheme.dynamic_ranges):
        return index is not None
    *_, rows, columns = node.inputs[index].shape
    return rows * columns >= LEAST_WIDTH * (rows + columns)
