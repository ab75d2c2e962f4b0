"""Find the routers of mixtures of experts: products that choose which parts of a network compute.

A router multiplies by a small matrix with a column for each expert; a TopK of the result decides which
experts a token gets. A small error there chooses another expert, whose whole output is then wrong.

Classifiers and detectors end in a TopK, too, but its choice is an answer: it goes to an output, through
Gathers at most. A router's choice goes on: into products, or as factors of the outputs of other products.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import channel_axis, is_dot_product, products_behind, weight_index
from transforms.graph.rewire import RUNTIME_DOMAIN, onnx_op

_CHOOSING = frozenset({"TopK", "ArgMax", "ArgMin"})
_EXPERTS = frozenset({"MoE", "QMoE"})
_LOGITS = 1  # the input of these that holds logits

_BETWEEN = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Exp", "Log", "Clip", "Relu", "Sigmoid", "Tanh", "Softplus", "Sqrt"}
    | {"Softmax", "LogSoftmax", "ReduceMax", "ReduceSum", "Where", "Cast", "Identity", "Reshape", "Flatten"}
    | {"Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Expand"}
)
"""Operators between a router and its TopK: element-wise nodes, softmax and its parts, changes of shape."""

_FACTORS = frozenset({"Mul", "Where", "Einsum"})

_MOST_PRODUCTS = 2
"""Products that a TopK chooses by: logits, and the noise that some models add to them."""

_MOST_CHOICES = 1024
"""Columns of a router's matrix at most: more are a vocabulary, whose matrix is not small."""


def routers(graph: gs.Graph) -> list[gs.Node]:
    """Return the products with a stored matrix whose results choose what the network computes next."""
    router_nodes: dict[int, gs.Node] = {}
    for node in walk.nodes(graph):
        if onnx_op(node) in _CHOOSING:
            products = products_behind(node.inputs[:1], _BETWEEN)
            chosen = products if _few(products) and _goes_on(node, products) else {}
        elif node.op in _EXPERTS and node.domain == RUNTIME_DOMAIN:
            chosen = products_behind(node.inputs[_LOGITS : _LOGITS + 1], _BETWEEN)
            chosen = chosen if _few(chosen) else {}
        else:
            continue
        router_nodes |= chosen
    return list(router_nodes.values())


def _few(products: dict[int, gs.Node]) -> bool:
    return 0 < len(products) <= _MOST_PRODUCTS and all(map(_has_few_choices, products.values()))


def _has_few_choices(product: gs.Node) -> bool:
    index = weight_index(product)
    shape = () if index is None else tuple(product.inputs[index].shape)
    axis = None if index is None else channel_axis(product, index, len(shape))
    return axis is not None and shape[axis] <= _MOST_CHOICES


def _goes_on(choice: gs.Node, products: dict[int, gs.Node]) -> bool:
    """Return whether a choice decides what is computed.

    It does if a product or a body of nodes depends on it, or if it is a factor of the outputs of products
    other than those that made the choice.
    """
    waiting, seen = list(choice.outputs), {id(tensor) for tensor in choice.outputs}
    factors: list[gs.Tensor] = []
    while waiting:
        tensor = waiting.pop()
        for node in tensor.outputs:
            if is_dot_product(node) or node.op in _EXPERTS or any(walk.bodies(node)):
                return True
            if onnx_op(node) in _FACTORS:
                factors += walk.computed_inputs(node)
            new = [output for output in node.outputs if id(output) not in seen]
            seen.update(map(id, new))
            waiting += new
    return any(id(factor) not in seen and _ends(factor) - products.keys() for factor in factors)


def _ends(tensor: gs.Tensor) -> set[int]:
    """Return the ids of the nearest products on which a tensor depends."""
    between = walk.makers([tensor], lambda node: not is_dot_product(node))
    read = [read_tensor for node in between.values() for read_tensor in node.inputs]
    producers = (walk.producer(read_tensor) for read_tensor in (tensor, *read))
    return {id(node) for node in producers if node is not None and is_dot_product(node)}
