"""Products that choose which parts of a network compute: the routers of a mixture of experts.

A router multiplies by a small matrix, with a column for each expert; a TopK of what it makes decides which
experts a token gets. A little error there chooses another expert, and all that this one computes is wrong.

A classifier or detector ends in a TopK, too. What that chooses is an answer: it goes to an output, by Gathers
at most. What a router chooses goes on: into products, or as factors of what other products make.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import channel_axis, is_dot_product, products_behind, weight_index
from transforms.graph.rewire import RUNTIME_DOMAIN, onnx_op

_CHOOSING = frozenset({"TopK", "ArgMax", "ArgMin"})
_EXPERTS = frozenset({"MoE", "QMoE"})
_LOGITS = 1  # which input of those has them

_BETWEEN = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Exp", "Log", "Clip", "Relu", "Sigmoid", "Tanh", "Softplus", "Sqrt"}
    | {"Softmax", "LogSoftmax", "ReduceMax", "ReduceSum", "Where", "Cast", "Identity", "Reshape", "Flatten"}
    | {"Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Expand"}
)
"""What may stand between a router and its TopK: element-wise nodes, softmax and its parts, other shapes."""

_FACTORS = frozenset({"Mul", "Where", "Einsum"})

_MOST_PRODUCTS = 2
"""That a TopK chooses by: logits, and the noise that some models add to them."""

_MOST_CHOICES = 1024
"""Columns of a router's matrix: more are a vocabulary, whose matrix is not small."""


def routers(graph: gs.Graph) -> list[gs.Node]:
    """Return the products with a stored matrix by whose results a network chooses what else it computes."""
    found: dict[int, gs.Node] = {}
    for node in walk.nodes(graph):
        if onnx_op(node) in _CHOOSING:
            products = products_behind(node.inputs[:1], _BETWEEN)
            chosen = products if _few(products) and _goes_on(node, products) else {}
        elif node.op in _EXPERTS and node.domain == RUNTIME_DOMAIN:
            chosen = products_behind(node.inputs[_LOGITS : _LOGITS + 1], _BETWEEN)
            chosen = chosen if _few(chosen) else {}
        else:
            continue
        found |= chosen
    return list(found.values())


def _few(products: dict[int, gs.Node]) -> bool:
    return 0 < len(products) <= _MOST_PRODUCTS and all(map(_has_few_choices, products.values()))


def _has_few_choices(product: gs.Node) -> bool:
    index = weight_index(product)
    shape = () if index is None else tuple(product.inputs[index].shape)
    axis = None if index is None else channel_axis(product, index, len(shape))
    return axis is not None and shape[axis] <= _MOST_CHOICES


def _goes_on(choice: gs.Node, products: dict[int, gs.Node]) -> bool:
    """Return whether a choice decides what is computed: a product reads what follows from it, or a body does,
    or it is a factor of what products other than those that it chooses by have made.
    """
    waiting, seen = list(choice.outputs), {id(tensor) for tensor in choice.outputs}
    others: list[gs.Tensor] = []
    while waiting:
        tensor = waiting.pop()
        for node in tensor.outputs:
            if is_dot_product(node) or node.op in _EXPERTS or any(walk.bodies(node)):
                return True
            if onnx_op(node) in _FACTORS:
                others += walk.computed_inputs(node)
            new = [one for one in node.outputs if id(one) not in seen]
            seen.update(map(id, new))
            waiting += new
    return any(id(one) not in seen and _ends(one) - products.keys() for one in others)


def _ends(tensor: gs.Tensor) -> set[int]:
    """Return the ids of the nearest products that a tensor is made of."""
    between = walk.makers([tensor], lambda node: not is_dot_product(node))
    read = [one for node in between.values() for one in node.inputs]
    made = (walk.producer(one) for one in (tensor, *read))
    return {id(node) for node in made if node is not None and is_dot_product(node)}
