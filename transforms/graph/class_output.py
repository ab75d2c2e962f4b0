"""Find the output of a classifier: one number for each class."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.embeddings import logits_of
from transforms.graph.shapes import shape_of

_RANK = 2  # [samples, classes]
_MOVES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "Clip", "Relu"})
_POOLS = frozenset({"GlobalAveragePool", "AveragePool", "ReduceMean", "GlobalMaxPool", "MaxPool"})
_FLOATS = frozenset({dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16})
_CHOOSING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"}) | _POOLS


def class_output(graph: gs.Graph) -> str | None:
    """Return the name of a classifier's only output, in which the largest number of a row is the answer.

    It has two axes and a floating-point type, and is computed by a layer, a pool or a Softmax: a normalized
    embedding has no answer, nor have logits of tokens. None for other models. A regression of several
    numbers cannot be distinguished from a classifier.
    """
    if len(graph.outputs) != 1:
        return None
    (output,) = graph.outputs
    shape = shape_of(output)
    if dtypes.element_type(output) not in _FLOATS or shape is None or len(shape) != _RANK or shape[-1] == 1:
        return None
    return str(output.name) if _has_answer(output) and output.name not in logits_of(graph) else None


def _has_answer(tensor: gs.Tensor) -> bool:
    node = walk.producer(tensor)
    while node is not None and node.op in _MOVES:
        node = walk.producer(node.inputs[0])
    if node is not None and node.op == "Add":
        makers = (walk.producer(operand) for operand in node.inputs)
        return any(maker is not None and is_dot_product(maker) for maker in makers)
    return node is not None and (node.op in _CHOOSING or is_dot_product(node))
