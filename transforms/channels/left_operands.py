"""Products of a computed tensor with constant matrices, in which the channels of the tensor are summed."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS

_MATRIX_RANK = 2


def multiplies(node: gs.Node, tensor: gs.Tensor) -> bool:
    """Return whether a node multiplies the rows of a tensor with a constant float32 matrix.

    MatMul, and Gemm unless it transposes the rows.
    """
    if (
        node.op not in ("MatMul", "Gemm")
        or node.domain not in STANDARD_DOMAINS
        or node.inputs[0] is not tensor
    ):
        return False
    weight = node.inputs[1]
    if not isinstance(weight, gs.Constant) or not dtypes.is_type(weight, dtypes.FLOAT):
        return False
    return len(weight.shape) == _MATRIX_RANK and 0 not in weight.shape and not node.attrs.get("transA", 0)


def layers_on(tensor: gs.Tensor) -> list[gs.Node]:
    """Return the nodes that multiply a tensor with constant matrices; none for constants."""
    if isinstance(tensor, gs.Constant) or not dtypes.is_type(tensor, dtypes.FLOAT):
        return []
    return [node for node, index in walk.uses(tensor) if index == 0 and multiplies(node, tensor)]


def channels_of(node: gs.Node) -> int:
    """Return over how many channels of its first operand such a node sums."""
    return int(node.inputs[1].shape[1 if node.attrs.get("transB", 0) else 0])


def rows_of(node: gs.Node, values: np.ndarray) -> np.ndarray:
    """Return a view of the weight of such a node with its channels on the first axis."""
    return values.T if node.attrs.get("transB", 0) else values
