"""Products of integers whose sums saturate with some inputs where the processor adds in pairs.

:mod:`ops.pair_sums` says which these are, and schemes with ``saturation = "avoid"`` make none. ONNX Runtime
widens the weights as it opens a model where the session option ``session.x64quantprecision`` is 1 and x86
has no VNNI: sums are exact then, and slower. A file cannot ask for it, and models in which nodes share a
weight do not open with it (1.32).
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from ops.pair_sums import wide_pairs
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR

OPTION = "session.x64quantprecision"

_BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


def saturating_products(graph: gs.Graph) -> list[gs.Node]:
    """Return each product of an input of 8 bits and a stored int8 weight of which a pair may saturate."""
    return [node for node in walk.nodes(graph) if dot_products.is_dot_product(node) and _may_saturate(node)]


def _may_saturate(node: gs.Node) -> bool:
    data, weight = (_dequantized(tensor) for tensor in node.inputs[:2])
    if data is None or dtypes.element_type(data) not in _BYTES:
        return False
    if not isinstance(weight, gs.Constant) or weight.dtype != np.int8:
        return False
    numbers: AnyArray = weight.values
    axes = dot_products.pair_axes(node, numbers.shape)
    return bool(axes) and wide_pairs(numbers, axes) > 0


def _dequantized(tensor: gs.Tensor) -> gs.Tensor | None:
    """Return the integers that a tensor is made of, None where it is made of something else."""
    made = walk.producer(tensor)
    return None if made is None or made.op != DEQUANTIZE_LINEAR else made.inputs[0]
