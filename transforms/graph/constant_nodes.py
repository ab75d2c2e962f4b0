"""Find nodes that only serve to compute a stored weight."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR
from transforms.graph.rewire import onnx_op

MADE_OF = frozenset({"Cast", "Sub", "Mul", "Reshape", "Slice", DEQUANTIZE_LINEAR})
"""Operators that dequantize stored integers."""

_ARITHMETIC = MADE_OF - {DEQUANTIZE_LINEAR, "Cast"}


def is_made_of_constants(node: gs.Node) -> bool:
    """Return whether a node only serves to compute a stored weight: it reads nothing that is computed."""
    return onnx_op(node) in _ARITHMETIC and all(
        walk.is_given(tensor) or _is_stored(tensor) for tensor in node.inputs
    )


def _is_stored(tensor: gs.Tensor) -> bool:
    maker = walk.producer(tensor)
    if maker is None or onnx_op(maker) not in MADE_OF:
        return isinstance(tensor, gs.Constant)
    return all(walk.is_given(source) or _is_stored(source) for source in maker.inputs)
