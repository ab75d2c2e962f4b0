"""Embedding tables read by Gathers, and the products that multiply by them.

A language model often multiplies its last states by its embedding table, through a Transpose or by a Gemm
with ``transB``: the table is stored once, and tied to that product, its head.

The logits have a number for each token. Adding a constant to all numbers of a row changes no probability,
and most of their energy may be the mean of each row, which the Softmax cancels: relative to it an error
looks small. Comparisons of logits therefore leave that mean out (:mod:`transforms.graph.output_view`), or
compare the probabilities.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.qdq import GATHER_BLOCKS, MATMUL_NBITS
from transforms.graph.rewire import onnx_op
from transforms.graph.shapes import shape_of

_MATRIX_RANK = 2

_BETWEEN = frozenset({"Add", "Mul", "Div", "Tanh", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that may follow the product: a bias, a factor, a soft limit, another type or shape."""

_TABLES = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.INT8, dtypes.UINT8)
"""Types of embeddings, and of the integers as which they are stored."""


def is_lookup(node: gs.Node, table: gs.Tensor) -> bool:
    """Return whether a node reads rows of a table."""
    is_gather = onnx_op(node) == "Gather"
    return is_gather and node.inputs[0] is table and int(node.attrs.get("axis", 0)) in (0, -_MATRIX_RANK)


def heads(node: gs.Node, table: gs.Tensor) -> list[gs.Node]:
    """Return the products by the transpose of a matrix that a node reading the matrix is, or feeds.

    The node is a Gemm with ``transB``, or a Transpose that only products read; other nodes give none.
    """
    if onnx_op(node) == "Gemm":
        return [node] if node.attrs.get("transB", 0) and _is_factor(node, table) else []
    is_transpose = onnx_op(node) == "Transpose"
    if not is_transpose or [int(axis) for axis in node.attrs.get("perm", (1, 0))] != [1, 0]:
        return []
    transposed = node.outputs[0]
    products = list(transposed.outputs)
    are_heads = all(_is_factor(user, transposed) and not user.attrs.get("transB", 0) for user in products)
    return products if are_heads else []


def _is_factor(node: gs.Node, tensor: gs.Tensor) -> bool:
    """Return whether a tensor is only the second factor of a product."""
    is_product = onnx_op(node) in ("MatMul", "Gemm")
    return is_product and [i for i, operand in enumerate(node.inputs) if operand is tensor] == [1]


def is_table(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is a matrix of float32 whose rows a Gather reads."""
    if not isinstance(tensor, gs.Constant) or len(tensor.shape) != _MATRIX_RANK:
        return False
    return dtypes.is_type(tensor, dtypes.FLOAT) and any(is_lookup(node, tensor) for node in tensor.outputs)


def rows_looked_up(node: gs.Node) -> int:
    """Return the number of rows of the stored matrix that a node looks up, also in integers; else 0."""
    if node.op != GATHER_BLOCKS and onnx_op(node) != "Gather":
        return 0
    table = node.inputs[0]
    is_matrix = isinstance(table, gs.Constant) and len(table.shape) == _MATRIX_RANK
    if not is_matrix or dtypes.element_type(table) not in _TABLES:
        return 0
    return int(table.shape[0]) if node.op == GATHER_BLOCKS or is_lookup(node, table) else 0


def is_tied(tensor: gs.Tensor) -> bool:
    """Return whether only Gathers and products by its transpose read a matrix."""
    if not is_table(tensor) or not any(heads(node, tensor) for node in tensor.outputs):
        return False
    return all(is_lookup(node, tensor) or bool(heads(node, tensor)) for node in tensor.outputs)


def tables(graph: gs.Graph) -> list[gs.Constant]:
    """Return the tied tables of a model and its largest table, in the order of first use."""
    candidates = [tensor for tensor in walk.constants(graph) if is_table(tensor)]
    largest = max(candidates, key=lambda tensor: tensor.shape[0] * tensor.shape[1], default=None)
    return [tensor for tensor in candidates if tensor is largest or is_tied(tensor)]


def readers(graph: gs.Graph) -> list[gs.Node]:
    """Return the nodes that read the :func:`tables` of a model, and the heads that follow them."""
    read = [(node, table) for table in tables(graph) for node in table.outputs]
    return [*(node for node, _ in read), *(head for pair in read for head in heads(*pair))]


def shared_heads(graph: gs.Graph) -> list[gs.Node]:
    """Return the products whose weight is the table itself, not a Transpose of it."""
    nodes = walk.nodes(graph)
    return [
        node for node in nodes if len(node.inputs) > 1 and is_dot_product(node) and is_table(node.inputs[1])
    ]


def logits_of(graph: gs.Graph) -> frozenset[str]:
    """Return the names of the outputs of a float model that are logits of tokens.

    A dot product computes them, and their last axis has as many numbers as an embedding of the model has
    rows: one for each token of the vocabulary.
    """
    return frozenset(str(tensor.name) for tensor in logits_tensors(graph))


def logits_tensors(graph: gs.Graph) -> list[gs.Tensor]:
    """Return the output tensors described in :func:`logits_of`."""
    tokens = {rows_looked_up(node) for node in walk.nodes(graph)} - {0}
    return [
        output
        for output in graph.outputs
        if (shape := shape_of(output)) and shape[-1] in tokens and _last_product(output) is not None
    ]


def rotating_products(graph: gs.Graph) -> list[gs.Node]:
    """Return the products with a symmetric stored matrix whose only reader is a head, with or without bias.

    They are written by :mod:`transforms.rotate_channels`.
    """
    last = (_last_product(tensor) for tensor in logits_tensors(graph))
    makers = (_without_bias(head.inputs[0]) for head in last if head is not None)
    return [node for node in makers if node is not None and _rotates(node)]


def _without_bias(tensor: gs.Tensor) -> gs.Node | None:
    """Return the node that computes a tensor, or the node before it if that adds a stored vector."""
    node = walk.producer(tensor)
    if node is None or onnx_op(node) != "Add" or not walk.is_read_once(tensor):
        return node
    computed = walk.computed_inputs(node)
    return walk.producer(computed[0]) if len(computed) == 1 else node


def _rotates(node: gs.Node) -> bool:
    if onnx_op(node) != "MatMul" or not isinstance(node.inputs[1], gs.Constant):
        return False
    shape = tuple(node.inputs[1].shape)
    if len(shape) != _MATRIX_RANK or shape[0] != shape[1] or not walk.is_read_once(node.outputs[0]):
        return False
    matrix = node.inputs[1].values
    return np.array_equal(matrix, matrix.T)


def _last_product(tensor: gs.Tensor) -> gs.Node | None:
    """Return the dot product or MatMulNBits that computes an output, before a bias, factor or limit."""
    node = walk.producer(tensor)
    for step in walk.steps_to(tensor, lambda candidate: candidate.op in _BETWEEN):
        node = walk.producer(walk.computed_inputs(step)[0])
    is_product = node is not None and (node.op == MATMUL_NBITS or is_dot_product(node))
    return node if is_product else None
