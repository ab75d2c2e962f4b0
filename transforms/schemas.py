"""What the operator schemas of ONNX say about the types of a node, in place of lists of operators."""

from __future__ import annotations

from functools import lru_cache

import onnx
import onnx_graphsurgeon as gs

from transforms import dtypes

_TYPE_STRINGS = {
    dtypes.FLOAT: "tensor(float)",
    dtypes.FLOAT16: "tensor(float16)",
    dtypes.BFLOAT16: "tensor(bfloat16)",
}


def versions(graph: gs.Graph) -> dict[str, int]:
    """Return the operator-set version of each domain that the model imports."""
    found = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in graph.import_domains or ()}
    return {"": graph.opset, **found}


@lru_cache(maxsize=4096)
def _find(op: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)
    except onnx.defs.SchemaError:
        return None


def schema(node: gs.Node, opsets: dict[str, int]) -> onnx.defs.OpSchema | None:
    """Return the schema of a node at the model's opsets; None for an operator that onnx does not define."""
    domain = "" if node.domain in (None, "", "ai.onnx") else node.domain
    return _find(node.op, domain, opsets[domain]) if domain in opsets else None


def is_bound(node: gs.Node, index: int, opsets: dict[str, int]) -> bool:
    """Return whether the schema ties an input to float32 by name, as it does the scales of Resize."""
    found = schema(node, opsets)
    if found is None or not found.inputs:
        return False
    parameter = found.inputs[min(index, len(found.inputs) - 1)]
    return parameter.type_str == _TYPE_STRINGS[dtypes.FLOAT]


def allows(node: gs.Node, element: int, opsets: dict[str, int]) -> bool:
    """Return whether every float32 input and output of the node could have the element type as well."""
    found = schema(node, opsets)
    if found is None:
        return False
    return all(
        _TYPE_STRINGS[element] in parameters[min(index, len(parameters) - 1)].types
        for tensors, parameters in ((node.inputs, found.inputs), (node.outputs, found.outputs))
        for index, tensor in enumerate(tensors)
        if dtypes.is_type(tensor, dtypes.FLOAT)
        and not (tensors is node.inputs and is_bound(node, index, opsets))
    )


def output_follows(node: gs.Node, output: int, inputs: list[int], opsets: dict[str, int]) -> bool:
    """Return whether an output has, by the schema, the type of one of the inputs with the indices given."""
    found = schema(node, opsets)
    if found is None:
        return False
    kind = found.outputs[min(output, len(found.outputs) - 1)].type_str
    return any(found.inputs[min(index, len(found.inputs) - 1)].type_str == kind for index in inputs)
