"""Tensors that may hold infinities: masks, and sums with masks on their way to a Softmax.

A block shares one exponent, and an infinity leaves it none: all of its numbers become NaN.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_CARRIERS = MOVES | frozenset(
    {"Add", "Sub", "Mul", "Where", "Min", "Max", "Cast", "CastLike", "Trilu", "Tile", "Pad", "Gemm"}
)


def infinite_tensors(graph: gs.Graph) -> set[int]:
    """Return the ids of the tensors of a graph and its bodies to which stored infinities are carried.

    That goes by moves, sums, products and choices, and ends at all other operators.
    """
    found = {id(tensor) for tensor in walk.constants(graph) if _is_infinite(tensor)}
    for node in walk.nodes(graph):
        made = node.op == "ConstantOfShape" and "value" in node.attrs and _is_infinite(node.attrs["value"])
        carried = node.op in _CARRIERS and any(id(tensor) in found for tensor in node.inputs)
        if node.domain in STANDARD_DOMAINS and (made or carried):
            found.update(map(id, node.outputs))
    return found


def _is_infinite(tensor: gs.Tensor) -> bool:
    if not isinstance(tensor, gs.Constant) or dtypes.is_discrete(tensor):
        return False
    values = np.asarray(tensor.values)
    return values.dtype.kind == "f" and bool(np.isinf(values).any())
