"""Products of transformers whose rounded weights cost most: values, outputs, ends of feed-forward blocks.

The output of a value projection is summed over tokens and added to the stream without any limit; the second
product of a feed-forward block reads the largest numbers of a model. In SmolLM2, with weights in uint4,
values in 8 bits reduce the divergence from 0.227 to 0.167 nats (four texts), for 3 % more bytes. First and
last layers count most. Which layers between them do differs between models: every third one is taken, as in
llama.cpp and onnxruntime-genai (k_quant_mixed).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import channel_axis, products_behind, weight_index
from transforms.graph.rewire import onnx_op

_VALUES = 2
"""The input of an attention operator that holds the values."""
_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
_SHARES = frozenset({"Softmax"})
_OF_SHARES = frozenset({"Cast", "Identity", "Dropout", "Where", "Mul", "Slice", "Reshape"})
_OF_VALUES = frozenset(
    {"Add", "Cast", "Concat", "Expand", "Identity", "Reshape", "ScatterND", "ScatterElements", "Squeeze"}
    | {"TensorScatter", "Tile", "Transpose", "Unsqueeze"}
)
_INNER = frozenset(
    {"Add", "Cast", "Clip", "Div", "Elu", "Erf", "Gelu", "HardSwish", "Identity", "LeakyRelu", "Mish", "Mul"}
    | {"Pow", "Relu", "Sigmoid", "Slice", "Softplus", "Split", "Swish", "Tanh", "FastGelu", "QuickGelu"}
)
"""Operators that may stand between the two products of a feed-forward block."""
_OF_LOGITS = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Softmax", "Tanh"})
_OUTER = 8  # one layer in this many counts as outer, at either end
_EVERY = 3


def sensitive_layers(graph: gs.Graph) -> list[gs.Node]:
    """Return products with a stored matrix, the most sensitive for their bytes first.

    These are values of attention, products that compute outputs of the model, and the second products of
    feed-forward blocks in the first and last eighth and in every third layer between. Empty for a graph
    without attention.
    """
    values = [node for inner in walk.graphs(graph) for node in _values(inner)]
    if not values:
        return []
    nodes = list(walk.nodes(graph))
    heads = products_behind(graph.outputs, _OF_LOGITS).values()
    seconds = [node for node in nodes if _is_second(node)]
    ordered = [*_ordered(values)[0], *_ordered(values)[1], *heads, *_ordered(seconds)[0]]
    return list({id(node): node for node in ordered if weight_size(node) is not None}.values())


def weight_size(node: gs.Node) -> tuple[int, int] | None:
    """Return the input and output sizes of a product with a stored matrix, None for other nodes."""
    index = weight_index(node) if onnx_op(node) in ("MatMul", "Gemm") else None
    shape = () if index is None else tuple(node.inputs[index].shape)
    axis = None if index is None else channel_axis(node, index, len(shape))
    return None if axis is None else (shape[1 - axis], shape[axis])


def weight_key(node: gs.Node) -> int:
    """Return the ``id`` of a product's stored matrix, which other products may share."""
    return id(node.inputs[weight_index(node) or 0])


def _ordered(nodes: Sequence[gs.Node]) -> tuple[list[gs.Node], list[gs.Node]]:
    """Return the layers that count most, outer ones first, and the others, given all in order."""
    outer = min(max(1, len(nodes) // _OUTER), len(nodes) // 2)
    inner = nodes[outer : len(nodes) - outer]
    ends = [node for i in range(outer) for node in (nodes[i], nodes[-1 - i])]
    chosen = [*ends, *inner[_EVERY - 1 :: _EVERY]]
    ids = set(map(id, chosen))
    return chosen, [node for node in inner if id(node) not in ids]


def _values(graph: gs.Graph) -> Iterable[gs.Node]:
    """Yield the products that compute values of attention, in order."""
    seen = set[int]()
    for node in graph.nodes:
        if node.op in _ATTENTION and len(node.inputs) > _VALUES:
            read = node.inputs[_VALUES]
        elif onnx_op(node) == "MatMul" and _is_of_shares(node.inputs[0]):
            read = node.inputs[1]
        else:
            continue
        for key, product in products_behind([read], _OF_VALUES).items():
            if key not in seen:
                seen.add(key)
                yield product


def _is_of_shares(tensor: gs.Tensor) -> bool:
    """Return whether a tensor has attention weights, from a Softmax."""
    passed = walk.makers([tensor], lambda node: onnx_op(node) in _OF_SHARES)
    ends = [tensor, *(operand for node in passed.values() for operand in node.inputs)]
    return any(
        (maker := walk.producer(operand)) is not None and onnx_op(maker) in _SHARES for operand in ends
    )


def _is_second(node: gs.Node) -> bool:
    """Return whether a product returns to the width that the products before it read.

    Only element-wise functions stand between them. A normalization of the stream is followed by products of
    several widths.
    """
    size = weight_size(node)
    if size is None:
        return False
    first = [weight_size(product) for product in products_behind(node.inputs[:1], _INNER).values()]
    return bool(first) and all(
        earlier is not None and earlier[0] == size[1] and earlier[1] >= size[0] for earlier in first
    )
