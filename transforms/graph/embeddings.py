"""Tables of rows that a Gather reads, and the products that multiply by them.

A language model often multiplies its last states by the table that its first node reads, as a Transpose of
it: the table is stored once, and tied to that product, its head.

The logits that this makes have a number for each token. What is added to all numbers of a row changes no
probability, and most of their energy may be the mean of each row, which the Softmax that chooses a token
cancels: an error beside it looks small. Whoever compares logits leaves that mean out
(:mod:`transforms.graph.output_view`), or compares the probabilities that follow from them.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.shapes import shape_of

_MATRIX_RANK = 2

_BETWEEN = frozenset({"Add", "Mul", "Div", "Tanh", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""What may follow the product: a bias, a factor, a soft limit, another type or shape."""

_TABLES = (dtypes.FLOAT, dtypes.FLOAT16)
"""Types of embeddings."""


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


def readers(graph: gs.Graph) -> list[gs.Node]:
    """Return the nodes that read the :func:`tables` of a model, and the heads that follow them."""
    direct = [node for table in tables(graph) for node in table.outputs]
    return [*direct, *(head for node in direct for head in heads(node))]


def logits_of(graph: gs.Graph) -> frozenset[str]:
    """Return the names of the outputs of a float model that are logits of tokens.

    A dot product makes them, and their last axis has as many numbers as an embedding of the model has rows:
    one for each token of its vocabulary.
    """
    tokens = {int(table.shape[0]) for table in walk.constants(graph) if is_table(table, _TABLES)}
    return frozenset(
        str(output.name)
        for output in graph.outputs
        if (shape := shape_of(output)) and shape[-1] in tokens and _is_product(output)
    )


def _is_product(tensor: gs.Tensor) -> bool:
    node = walk.producer(tensor)
    for step in walk.steps_to(tensor, lambda one: one.op in _BETWEEN):
        node = walk.producer(walk.computed_inputs(step)[0])
    return node is not None and is_dot_product(node)
