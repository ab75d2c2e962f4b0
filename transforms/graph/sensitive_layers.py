"""Products of transformers whose rounded weights cost most: values, outputs, ends of feed-forward parts.

What a value projection makes is summed over tokens and added to the stream, with nothing that limits it; the
second product of a feed-forward part reads the largest numbers of a model. In SmolLM2, with weights in uint4,
values in 8 bits take the divergence from 0.227 to 0.167 nats (four texts), for 3 % more bytes.
First and last layers count most. Which layers between them do differs from model to model: every third is
taken, as llama.cpp and onnxruntime-genai (k_quant_mixed) do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import channel_axis, products_behind, weight_index
from transforms.graph.rewire import onnx_op

_VALUES = 2
"""Which input of an attention operator has the values."""
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
"""What may stand between the two products of a feed-forward part."""
_OF_LOGITS = frozenset({"Add", "Cast", "Div", "Identity", "Mul", "Softmax", "Tanh"})
_OUTER = 8  # a layer of so many, at either end
_EVERY = 3


def sensitive_layers(graph: gs.Graph) -> list[gs.Node]:
    """Return products with a stored matrix, the most sensitive for their bytes first.

    Those are values of attention, products that make outputs of the model, and the second products of
    feed-forward parts in the first and the last eighth and in every third layer between. None in a graph
    without attention.
    """
    values = [node for one in walk.graphs(graph) for node in _values(one)]
    if not values:
        return []
    nodes = list(walk.nodes(graph))
    heads = products_behind(graph.outputs, _OF_LOGITS).values()
    seconds = [node for node in nodes if _is_second(node)]
    ordered = [*_ordered(values)[0], *_ordered(values)[1], *heads, *_ordered(seconds)[0]]
    return list({id(node): node for node in ordered if weight_size(node) is not None}.values())


def weight_size(node: gs.Node) -> tuple[int, int] | None:
    """Return the inputs and outputs of a product of matrices whose weight is stored, None of another."""
    index = weight_index(node) if onnx_op(node) in ("MatMul", "Gemm") else None
    shape = () if index is None else tuple(node.inputs[index].shape)
    axis = None if index is None else channel_axis(node, index, len(shape))
    return None if axis is None else (shape[1 - axis], shape[axis])


def weight_key(node: gs.Node) -> int:
    """Return the ``id`` of the stored matrix of a product, which others may read."""
    return id(node.inputs[weight_index(node) or 0])


def _ordered(nodes: Sequence[gs.Node]) -> tuple[list[gs.Node], list[gs.Node]]:
    """Return the layers that count most, of those in order, outer ones first, and the others."""
    outer = min(max(1, len(nodes) // _OUTER), len(nodes) // 2)
    inner = nodes[outer : len(nodes) - outer]
    ends = [node for i in range(outer) for node in (nodes[i], nodes[-1 - i])]
    chosen = [*ends, *inner[_EVERY - 1 :: _EVERY]]
    ids = set(map(id, chosen))
    return chosen, [node for node in inner if id(node) not in ids]


def _values(graph: gs.Graph) -> Iterable[gs.Node]:
    """Yield the products that make values of attention, in order."""
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
    """Return whether a tensor has shares of attention: a Softmax made it."""
    passed = walk.makers([tensor], lambda node: onnx_op(node) in _OF_SHARES)
    ends = [tensor, *(one for node in passed.values() for one in node.inputs)]
    return any((made := walk.producer(one)) is not None and onnx_op(made) in _SHARES for one in ends)


def _is_second(node: gs.Node) -> bool:
    """Return whether a product leads back to the width that the products before it read.

    Between them are functions of each number. Behind a normalization of the stream are products of several
    widths.
    """
    size = weight_size(node)
    if size is None:
        return False
    first = [weight_size(one) for one in products_behind(node.inputs[:1], _INNER).values()]
    return bool(first) and all(own is not None and own[0] == size[1] and own[1] >= size[0] for own in first)
