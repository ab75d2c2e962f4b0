"""Opsets of local functions: onnx's inliner leaves a function that imports another version than its model."""

from __future__ import annotations

import onnx

from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.schemas import changes, definition
from transforms.model.local_functions import Key, called, key_of, nodes_in


def align_opsets(model: onnx.ModelProto) -> None:
    """Write the model's opsets into its local functions, in place, where they mean the same.

    They do where the definition of every operator that a function has from ONNX changed nothing but types
    between the two opsets. In another domain the function must have no nodes but calls of local functions. A
    runtime takes the model's opset for all, too.
    """
    versions = {_domain(opset): opset.version for opset in model.opset_import}
    known = {key_of(function) for function in model.functions}
    for function in model.functions:
        for opset in function.opset_import:
            wanted = versions.get(_domain(opset), opset.version)
            if opset.version != wanted and _means_the_same(function, opset, wanted, known):
                opset.version = wanted


def _means_the_same(
    function: onnx.FunctionProto, opset: onnx.OperatorSetIdProto, wanted: int, known: set[Key]
) -> bool:
    operators = {
        node.op_type
        for node in nodes_in(function.node)
        if _domain(node) == _domain(opset) and called(node) not in known
    }
    if opset.domain not in STANDARD_DOMAINS:
        return not operators
    low, high = sorted((opset.version, wanted))
    return all(definition(op, low) is not None and not changes(op, low, high) for op in operators)


def _domain(one: onnx.NodeProto | onnx.OperatorSetIdProto) -> str:
    return "" if one.domain in STANDARD_DOMAINS else one.domain
