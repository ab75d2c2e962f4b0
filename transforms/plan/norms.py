"""Divisors that are norms of what they divide."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product

_SHAPES = frozenset({"Shape", "Size"})


def is_norm(tensor: gs.Tensor, divisor: gs.Tensor) -> bool:
    """Return whether a divisor is made of what is divided, without layers between them."""
    makers = walk.makers([divisor], lambda node: not is_dot_product(node) and node.op not in _SHAPES)
    return any(read is tensor for maker in makers.values() for read in maker.inputs)
