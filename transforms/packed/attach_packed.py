"""The functions of this package that no library has, attached to the models that call them."""

from __future__ import annotations

import onnx

from transforms.graph.proto_graphs import each_node
from transforms.packed import DOMAIN
from transforms.packed.block_scale import BLOCK_SCALE, make_block_scale
from transforms.packed.unpackers import format_of_op, make_unpacker

_LEAST_IR_VERSION = 8
"""The first with functions in a model."""


def attach_packed(model: onnx.ModelProto) -> None:
    """Attach the functions that a model calls and does not have, in place."""
    if all(one.domain != DOMAIN for one in model.opset_import):
        return
    opset = max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=0)
    known = {function.name for function in model.functions if function.domain == DOMAIN}
    for op in sorted(_called(model.graph) - known):
        if found := format_of_op(op):
            model.functions.append(make_unpacker(found[0], opset, patched=found[1]))
        elif op == BLOCK_SCALE:
            model.functions.append(make_block_scale(opset))
    model.ir_version = max(model.ir_version, _LEAST_IR_VERSION)


def _called(graph: onnx.GraphProto) -> set[str]:
    """Return the operators of our domain in a graph and its bodies."""
    return {node.op_type for node in each_node(graph) if node.domain == DOMAIN}
