"""Names of element types, and of the formats to which nodes round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes
from transforms.graph.block_format import block_format_of
from transforms.graph.qdq import QUANTIZE

NARROW = {int(onnx.TensorProto.BFLOAT16), int(onnx.TensorProto.FLOAT16)}


def type_name(element: int | None) -> str:
    """Return the name of an element type in the spelling of formats; None is unknown."""
    if element is None:
        return "unknown"
    try:
        name = str(onnx.TensorProto.DataType.Name(element)).lower()
    except ValueError:
        return f"type {element}"
    return {"float": "float32", "double": "float64"}.get(name, name)


def rounded_format(node: gs.Node) -> str:
    """Return the name of the format to which a node rounds, "" if it does not round.

    Raises ValueError naming node and attribute for a block format that its operator does not accept.
    """
    if fmt := block_format_of(node):
        return fmt.name
    zero_point = dtypes.element_type(node.inputs[2]) if len(node.inputs) > 2 else 0
    output = dtypes.element_type(node.outputs[0]) if node.outputs else 0
    kind = rounded_type(node.op, node.attrs, zero_point, output)
    return type_name(kind) if kind else ""


def rounded_type(op: str, attributes: Mapping[str, Any], zero_point: int | None, output: int | None) -> int:
    """Return the element type to which a node rounds, 0 for none."""
    if op in QUANTIZE:
        declared = attributes.get("output_dtype", 0)
        return int(declared or zero_point or output or onnx.TensorProto.UINT8)
    if op == "DynamicQuantizeLinear":
        return int(onnx.TensorProto.UINT8)
    to = int(attributes.get("to", 0)) if op == "Cast" else 0
    return to if to in NARROW else 0
