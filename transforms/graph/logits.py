"""Outputs that are logits of tokens: what is added to all numbers of a row changes no probability.

Most of their energy may be the mean of each row, which the Softmax that chooses a token cancels: an error
beside it looks small. Whoever compares logits leaves that mean out (:mod:`transforms.graph.output_view`), or
compares the probabilities that follow from them.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.embeddings import is_table
from transforms.graph.shapes import shape_of

_BETWEEN = frozenset({"Add", "Mul", "Div", "Tanh", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""What may follow the product: a bias, a factor, a soft limit, another type or shape."""

_TABLES = (dtypes.FLOAT, dtypes.FLOAT16)
"""Types of embeddings."""


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
