"""Products of float32 whose inputs ONNX Runtime may round to 8 bits when it runs a model.

From a product and the DequantizeLinear of its stored weight it makes a MatMulNBits as it opens the model. The
kernels of the processor take inputs as integers of 8 bits then, with a scale for each block. Seen in ONNX
Runtime 1.32.0, for one scale, one for each channel and one for each block; the session option
``session.qdq_matmulnbits_accuracy_level`` is 4 there if it is not set, and 1 keeps the inputs in float32.

Inputs of 16 bits are floats to it, since it has kernels of integers for 8 alone. It leaves two forms alone, a
Gemm of a turned weight and weights of three axes: a vector takes 7 and 40 times as long in them, for which
the model is written as other runtimes know it, and the option is named.
"""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.qdq import DEQUANTIZE_LINEAR, QUANTIZE_LINEAR
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS

OPTION = "session.qdq_matmulnbits_accuracy_level"

_TYPES = onnx.TensorProto
_BYTES: frozenset[int | None] = frozenset({_TYPES.INT8, _TYPES.UINT8})
_STORED = _BYTES | {_TYPES.INT4, _TYPES.UINT4}
_DOMAINS = (*STANDARD_DOMAINS, RUNTIME_DOMAIN)  # of DequantizeLinear


def rounded_inputs(graph: gs.Graph) -> list[gs.Node]:
    """Return each MatMul and Gemm of a stored matrix of integers and a float32 input that was not one of
    8 bits.
    """
    return [node for node in walk.nodes(graph) if _is_product(node) and _has_float_input(node, graph)]


def _is_product(node: gs.Node) -> bool:
    if node.op not in ("MatMul", "Gemm") or node.domain not in STANDARD_DOMAINS:
        return False
    turned = any(node.attrs.get(name, 0) for name in ("transA", "transB"))
    return not turned and all(node.attrs.get(name, 1.0) == 1.0 for name in ("alpha", "beta"))


def _has_float_input(node: gs.Node, graph: gs.Graph) -> bool:
    data, weight = node.inputs[:2]
    made, before = walk.producer(weight), walk.producer(data)
    if made is None or not _is_dequantized(made):
        return False
    if len(walk.uses(weight)) != 1 or walk.is_output(weight, graph):
        return False
    if not _is_stored(made.inputs[0]) or dtypes.element_type(made.inputs[0]) not in _STORED:
        return False
    if not dtypes.is_type(data, dtypes.FLOAT):
        return False
    if before is None or not _is_dequantized(before):
        return True
    return dtypes.element_type(before.inputs[0]) not in _BYTES


def _is_stored(integers: gs.Tensor) -> bool:
    """Return whether a matrix is stored in integers, or quantized by a node that is computed once."""
    quantize = walk.producer(integers)
    source = quantize.inputs[0] if quantize is not None and quantize.op == QUANTIZE_LINEAR else integers
    return isinstance(source, gs.Constant) and len(source.shape) == 2


def _is_dequantized(made: gs.Node) -> bool:
    return made.op == DEQUANTIZE_LINEAR and made.domain in _DOMAINS
