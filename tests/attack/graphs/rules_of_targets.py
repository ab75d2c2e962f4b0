"""The rules of targets on the protos of a model: what tools.check has to find, without its code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.attack.graphs.interpret import graphs
from transforms.scheme.targets import TARGETS

_QUANTIZE = ("QuantizeLinear", "DequantizeLinear", "ExtendedQuantizeLinear", "ExtendedDequantizeLinear")
_BLOCKS = ("BFPQuantizeDequantize", "MXQuantizeDequantize")
_INTEGERS = ("UINT4", "INT4", "UINT8", "INT8", "UINT16", "INT16", "INT32", "UINT32")


def breaks(model: onnx.ModelProto, name: str) -> str | None:
    """Return the first rule of a target that a model breaks for sure, or None."""
    return next(_rules(model, name), None)


def _rules(model: onnx.ModelProto, name: str) -> Iterator[str]:
    row = TARGETS[name]
    opset = max(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    if row.opsets and not row.opsets[0] <= opset <= row.opsets[1]:
        yield f"opset {opset}"
    held = {t.name: t for graph in graphs(model.graph) for t in graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in held]
    for value in inputs if row.fixed_shapes else ():
        tensor = value.type.tensor_type
        if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
            yield f"input '{value.name}' has free dimensions"
    count = 0
    for graph in graphs(model.graph):
        for node in graph.node:
            if node.op_type in _BLOCKS and row.takes_integers:
                yield f"{node.op_type} '{node.name}'"
            if node.op_type in _QUANTIZE:
                count += 1
                yield from _of_pair(node, held, name)
    if row.takes_integers and not count:
        yield "nothing is quantized"


def _of_pair(node: onnx.NodeProto, held: dict[str, TensorProto], name: str) -> Iterator[str]:
    row = TARGETS[name]
    scale = held.get(node.input[1])
    zero = held.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if scale is None or zero is None:
        return
    kind = TensorProto.DataType.Name(zero.data_type)
    if kind.lower() not in {*row.activations, *row.weights, *row.biases}:
        yield f"{node.op_type} '{node.name}' of {kind}"
    if kind not in _INTEGERS:
        return
    scales, zeros = numpy_helper.to_array(scale), numpy_helper.to_array(zero).astype(np.int64)
    if row.symmetric and zeros.any():
        yield f"zero point of '{node.name}'"
    if row.power_of_two and (np.frexp(scales)[0] != 0.5).any():
        yield f"scale of '{node.name}' is {scales}"
    if not row.per_channel and scales.size > 1:
        yield f"{scales.size} scales of '{node.name}'"
