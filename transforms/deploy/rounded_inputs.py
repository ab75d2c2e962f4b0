"""Products of float32 whose inputs ONNX Runtime may round to 8 bits when it runs a model.

From a product and the DequantizeLinear of its stored weight it makes a MatMulNBits as it opens the model. The
kernels of the processor take inputs as integers of 8 bits then, with a scale for each block. Seen in ONNX
Runtime 1.32.0, for one scale, one for each channel and one for each block; the session option
``session.qdq_matmulnbits_accuracy_level`` is 4 there if it is not set, and 1 keeps the inputs in float32.
"""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from transforms.deploy.grids import DEQUANTIZE
from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS

OPTION = "session.qdq_matmulnbits_accuracy_level"

_TYPES = onnx.TensorProto
_STORED = frozenset({_TYPES.INT4, _TYPES.UINT4, _TYPES.INT8, _TYPES.UINT8})


def rounded_inputs(graph: gs.Graph) -> list[gs.Node]:
    """Return each MatMul and Gemm of a stored matrix of integers and a float32 input that was not one."""
    return [node for node in walk.nodes(graph) if _is_product(node) and _has_float_input(node, graph)]


def _is_product(node: gs.Node) -> bool:
    if node.op not in ("MatMul", "Gemm") or node.domain not in STANDARD_DOMAINS:
        return False
    turned = any(node.attrs.get(name, 0) for name in ("transA", "transB"))
    return not turned and all(node.attrs.get(name, 1.0) == 1.0 for name in ("alpha", "beta"))


def _has_float_input(node: gs.Node, graph: gs.Graph) -> bool:
    data, weight = node.inputs[:2]
    made, before = walk.producer(weight), walk.producer(data)
    if made is None or made.op != DEQUANTIZE or made.domain not in STANDARD_DOMAINS:
        return False
    if len(walk.uses(weight)) != 1 or walk.is_output(weight, graph):
        return False
    stored = made.inputs[0]
    if not isinstance(stored, gs.Constant) or len(stored.shape) != 2:
        return False
    if dtypes.element_type(stored) not in _STORED:
        return False
    return dtypes.is_type(data, dtypes.FLOAT) and (before is None or before.op != DEQUANTIZE)
