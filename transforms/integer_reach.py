"""Which values a model rounds to integers where a scheme asks for them, in the way of ONNX Runtime's static
quantization.

Integers are read by

* dot products: Conv, ConvTranspose, Gemm, MatMul, both operands;
* arithmetic on what those make: Add, Mul, Concat, AveragePool, GlobalAveragePool, LeakyRelu, Sigmoid, and so
  on, unless in a zone that stays float (:mod:`transforms.float_zones`);
* operators that only move numbers (Reshape, Transpose, MaxPool, ...) between or before those; their result
  has the scale of their input.

A layer is quantized once after it: not between a dot product and the bias that an Add puts on it, nor before
a Relu or Clip that alone reads what a dot product or sum makes. Outputs of the model are quantized where such
a layer makes them, but for a Concat: its inputs are, so that boxes and scores in one output each keep their
own scale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import onnx_graphsurgeon as gs

from transforms import dtypes, walk
from transforms.dot_products import DOT_PRODUCTS, is_dot_product, is_operand
from transforms.float_zones import float_zone
from transforms.substitute import STANDARD_DOMAINS

ARITHMETIC = frozenset(
    {"Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Relu", "Clip"}
    | {"HardSigmoid", "HardSwish", "Tanh", "PRelu", "Sub", "Div", "Resize"}
)
"""Operators beside dot products that read and make integers."""

MOVES = frozenset(
    {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "GlobalMaxPool", "Gather"}
    | {"GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Identity", "Pad"}
    | {"Slice", "Split"}
)
"""Operators that make no number that was not there: the first input is what they move."""

SLICES = frozenset({"Slice", "Split"})

_RECTIFIERS = frozenset({"Relu", "Clip"})
_ONE_INPUT = ARITHMETIC - {"Add", "Mul", "Sub", "Div", "Concat"}

Edge = tuple[int, int]


class IntegerReach:
    """The inputs of nodes and the outputs of the model that are integers; which tensors share a scale.

    ``edges`` holds ``(id(node), index of the input)``, ``outputs`` ids of tensors that are quantized for
    being outputs.
    """

    def __init__(
        self, graph: gs.Graph, takes: Callable[[gs.Node], bool], *, share_slices: bool = False
    ) -> None:
        """Walk the outermost graph; ``takes`` says of which nodes the scheme wants integers at all."""
        self._graph, self._takes, self._share_slices = graph, takes, share_slices
        self._zone = float_zone(graph)
        self.layers = self._find_layers()
        self._moves = self._find_moves()
        self.edges = set(self._find_edges())
        self.outputs = set(self._find_outputs())

    def source(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the tensor whose scale a tensor has: the one that was moved to where it is."""
        while (node := _producer(tensor)) is not None and id(node) in self._moves:
            apart = node.op in SLICES and not self._share_slices
            if apart or isinstance(node.inputs[0], gs.Constant):
                break
            tensor = node.inputs[0]
        return tensor

    def maker(self, tensor: gs.Tensor) -> gs.Node | None:
        """Return the integer layer that makes a tensor, moved or not; None where something else does."""
        node = _producer(tensor)
        while node is not None and node.op in MOVES:
            node = _producer(node.inputs[0])
        return node if node is not None and id(node) in self.layers else None

    def layer(self, node: gs.Node) -> gs.Node:
        """Return the node whose work a node goes on with: through moves, rectifiers and added biases."""
        while True:
            before = node.inputs[0] if node.op in MOVES else self._continued(node)
            producer = None if before is None else _producer(before)
            if producer is None:
                return node
            node = producer

    def _find_layers(self) -> set[int]:
        """Return the nodes that compute in integers: dot products, and the arithmetic on what those make."""
        self.layers = set()
        for node in self._graph.nodes:
            if self._takes(node) and (is_dot_product(node) or self._is_arithmetic(node)):
                self.layers.add(id(node))
        return self.layers

    def _is_arithmetic(self, node: gs.Node) -> bool:
        if node.op not in ARITHMETIC or node.domain not in STANDARD_DOMAINS or id(node) in self._zone:
            return False
        if node.op == "Clip" and any(isinstance(t, gs.Variable) for t in node.inputs[1:] if not t.is_empty()):
            return False
        data = [t for _, t in _data(node) if not isinstance(t, gs.Constant)]
        return bool(data) and any(self.maker(t) is not None for t in data) and all(map(_is_float, data))

    def _find_moves(self) -> set[int]:
        """Return the moves that lead to an integer layer, or from one to an output of the model."""
        found: set[int] = set()
        for node in reversed(self._graph.nodes):
            if node.op not in MOVES or not self._takes(node) or id(node) in self._zone or not _keeps(node):
                continue
            readers = [user for tensor in node.outputs for user in tensor.outputs]
            wanted = any(id(r) in found or id(r) in self.layers for r in readers)
            wanted = wanted or any(self._is_integer_output(tensor) for tensor in node.outputs)
            if wanted and _is_float(node.inputs[0]):
                found.add(id(node))
        return found

    def _is_integer_output(self, tensor: gs.Tensor) -> bool:
        """Return whether the tensor is an output made by a layer; of a Concat the parts have scales."""
        maker = self.maker(tensor)
        return maker is not None and maker.op != "Concat" and walk.is_output(tensor, self._graph)

    def _find_edges(self) -> Iterator[Edge]:
        for node in self._graph.nodes:
            if id(node) in self._moves:
                if not isinstance(node.inputs[0], gs.Constant):
                    yield id(node), 0
            elif id(node) in self.layers and self._continued(node) is None:
                yield from ((id(node), index) for index, _ in _data(node))

    def _continued(self, node: gs.Node) -> gs.Tensor | None:
        """Return the result of a layer with which the node goes on, before anything else sees it."""
        if node.op in _RECTIFIERS:
            return self._unseen(node.inputs[0], DOT_PRODUCTS | {"Add"})
        if node.op != "Add" or not any(isinstance(tensor, gs.Constant) for tensor in node.inputs):
            return None
        return next((t for t in node.inputs if self._unseen(t, {"MatMul"}) is not None), None)

    def _unseen(self, tensor: gs.Tensor, makers: Collection[str]) -> gs.Tensor | None:
        maker = _producer(tensor)
        if maker is None or maker.op not in makers or walk.is_output(tensor, self._graph):
            return None
        return tensor if len(walk.uses(tensor)) == 1 else None

    def _find_outputs(self) -> Iterator[int]:
        return (id(tensor) for tensor in self._graph.outputs if self._is_integer_output(tensor))


def _producer(tensor: gs.Tensor) -> gs.Node | None:
    return tensor.inputs[0] if tensor.inputs else None


def _data(node: gs.Node) -> Iterator[tuple[int, gs.Tensor]]:
    """Yield the inputs that a node computes with: operands, addends, not bounds, shapes or biases."""
    for index, tensor in enumerate(node.inputs):
        if tensor.is_empty() or (is_dot_product(node) and not is_operand(node, index)):
            continue
        if node.op in _ONE_INPUT and index:
            continue
        yield index, tensor


def _is_float(tensor: gs.Tensor) -> bool:
    return dtypes.is_type(tensor, dtypes.FLOAT)


def _keeps(node: gs.Node) -> bool:
    """Return whether a Pad pads with zero, which every scale has; true of all other moves."""
    if node.op != "Pad" or node.attrs.get("mode", "constant") != "constant":
        return True
    value = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    return value is None or (isinstance(value, gs.Constant) and not value.values.any())
