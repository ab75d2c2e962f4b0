"""Tables of rows that a Gather reads, and the products that multiply by them.

A language model often multiplies its last states by the table that its first node reads, as a Transpose of
it: the table is stored once, and tied to that product, its head.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import STANDARD_DOMAINS

_MATRIX_RANK = 2


def is_lookup(node: gs.Node, table: gs.Tensor) -> bool:
    """Return whether a node reads rows of a table."""
    is_gather = node.op == "Gather" and node.domain in STANDARD_DOMAINS
    return is_gather and node.inputs[0] is table and int(node.attrs.get("axis", 0)) in (0, -_MATRIX_RANK)


def heads(node: gs.Node) -> list[gs.Node]:
    """Return the MatMuls that multiply by what a Transpose makes of a matrix; none if others read it, too."""
    is_turned = node.op == "Transpose" and node.domain in STANDARD_DOMAINS
    if not is_turned or [int(axis) for axis in node.attrs.get("perm", (1, 0))] != [1, 0]:
        return []
    turned = node.outputs[0]
    is_head = [
        user.op == "MatMul" and user.domain in STANDARD_DOMAINS and user.inputs[0] is not turned
        for user in turned.outputs
    ]
    return list(turned.outputs) if all(is_head) else []


def is_table(tensor: gs.Tensor, types: Collection[int] = (dtypes.FLOAT,)) -> bool:
    """Return whether a tensor is a matrix of floats, of float32 by default, whose rows a Gather reads."""
    if not isinstance(tensor, gs.Constant) or len(tensor.shape) != _MATRIX_RANK:
        return False
    return dtypes.element_type(tensor) in types and any(is_lookup(node, tensor) for node in tensor.outputs)


def is_tied(tensor: gs.Tensor) -> bool:
    """Return whether Gathers, and Transposes in front of products, read a matrix, and nothing else does."""
    if not is_table(tensor) or not any(heads(node) for node in tensor.outputs):
        return False
    return all(is_lookup(node, tensor) or bool(heads(node)) for node in tensor.outputs)


def tables(graph: gs.Graph) -> list[gs.Constant]:
    """Return the tied tables of a model, and the one of most numbers, in the order of first use."""
    found = [tensor for tensor in walk.constants(graph) if is_table(tensor)]
    largest = max(found, key=lambda tensor: tensor.shape[0] * tensor.shape[1], default=None)
    return [tensor for tensor in found if tensor is largest or is_tied(tensor)]
