"""Clip and Pad before opset 11, whose bounds, widths and filling are attributes, which later are inputs.

The converter of the onnx package gives the inputs float32 whatever type the data have, and leaves the filling
of a Pad that does not fill with a number where it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from transforms.graph import walk
from transforms.model.proto_facts import Facts, attributes_of, constant
from transforms.model.read_model import ModelError

_LARGEST = float(np.finfo(np.float32).max)
"""Bound of a Clip that names none, whatever the type of its data."""


def clip_nodes(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto] | None:
    """Return a Clip and its bounds in the type of its data; None for float32, which the converter does."""
    if facts.types.get(node.input[0], TensorProto.UNDEFINED) == TensorProto.FLOAT:
        return None
    bounds = {"min": -_LARGEST, "max": _LARGEST} | attributes_of(node)
    return _with_inputs(node, {key: _typed(node, bounds[key], facts) for key in ("min", "max")}, names)


def pad_nodes(node: NodeProto, facts: Facts, opset: int, names: walk.Names) -> list[NodeProto]:
    """Return a Pad with its widths, and its filling in the type of its data where there is one."""
    attributes = attributes_of(node)
    mode, value = attributes.get("mode", b"constant").decode(), attributes.get("value", 0.0)
    inputs = {"pads": np.array(attributes["pads"], np.int64)}
    if mode == "constant" and value != 0:
        inputs["value"] = _typed(node, value, facts)
    return _with_inputs(node, inputs, names, mode=mode)


def _with_inputs(
    node: NodeProto, values: dict[str, np.ndarray[Any, Any]], names: walk.Names, **attributes: str
) -> list[NodeProto]:
    """Return constants, and the node that reads its data and these."""
    held = [constant(names.derive(node.output[0], key), value) for key, value in values.items()]
    inputs = [node.input[0], *(one.output[0] for one in held)]
    return [*held, helper.make_node(node.op_type, inputs, node.output, node.name, **attributes)]


def _typed(node: NodeProto, value: float, facts: Facts) -> np.ndarray[Any, Any]:
    kind = facts.types.get(node.input[0], TensorProto.UNDEFINED)
    if kind == TensorProto.UNDEFINED:
        raise ModelError(f"the type of its input '{node.input[0]}' is unknown")
    with np.errstate(over="ignore"):  # no bound of float16 is as large as that of a Clip without
        return np.asarray(value, helper.tensor_dtype_to_np_dtype(kind))
