"""Which values a model rounds to integers where a scheme asks for them, in the way of ONNX Runtime's static
quantization.

Integers are read by

* dot products: Conv, ConvTranspose, Gemm, MatMul, both operands; not the narrow product of outlying channels
  that were taken out of another one, which would set its range (:mod:`transforms.move_outliers`);
* arithmetic on what those make: Add, Mul, Concat, AveragePool, GlobalAveragePool, LeakyRelu, Sigmoid, and so
  on, unless in a zone that stays float (:mod:`transforms.plan.float_only_nodes`);
* operators that only move numbers (:mod:`transforms.plan.integer_moves`) where integers alone read what they
  move; results have the scale of their input, those of Slice and Split where the scheme aligns slices.

A layer is quantized once after it: not between a dot product and the bias that an Add puts on it, moved or
not, nor before a Relu or Clip that alone reads what a dot product, sum, product or ratio makes, nor before a
Clip that alone reads a Concat. Outputs of the model are quantized where such a layer makes them, except a
Concat, or Concats of Concats: their inputs are, so that boxes and scores in one output each keep their own
scale.

What stays float: nodes that compute with sentinels, beside ordinary ones
(:mod:`transforms.plan.sentinels`), and what kernels of integers would compute wrongly, with what it reads
(:mod:`transforms.plan.integer_moves`).

A computed divisor is an integer only for targets with a kernel for that: next to zero, steps of one size are
as large as the numbers, and a norm is a number for each sample, of which few show no range. What is divided
by a norm of its own stays float with it: cut off at the end of its range, it would have another norm.

A sum, difference, product or ratio whose result nothing reads as integers computes in float anyway. Of its
operands those alone are integers that a convolution or an activation makes, whose kernels write integers
alone; those of Gemm and MatMul write float32 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_graphsurgeon as gs

from transforms.graph import dot_products as products
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import DOT_PRODUCTS, is_dot_product, is_of_outliers
from transforms.graph.rewire import onnx_op
from transforms.plan.graph_facts import GraphFacts
from transforms.plan.integer_moves import MOVES, is_move, is_operand_moved, keeps_grid
from transforms.scheme.targets import Target

ARITHMETIC = frozenset(
    {"Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Relu", "Clip"}
    | {"HardSigmoid", "HardSwish", "Tanh", "PRelu", "Sub", "Div", "Resize"}
)
"""Operators beside dot products that read and make integers."""

SLICES = frozenset({"Slice", "Split"})

_RECTIFIERS = frozenset({"Relu", "Clip"})
_RECTIFIED = frozenset({*DOT_PRODUCTS, "Add", "Sub", "Mul", "Div"})
_PLAIN = frozenset({"Add", "Sub", "Mul", "Div"})
"""Layers that compute in float between DequantizeLinear and QuantizeLinear, if the latter is missing, at no
cost: a dot product or an activation would lose its kernel of integers.
"""

_OPEN_ENDS = frozenset({"Gemm", "MatMul"})
"""Layers that compute in integers also if what they make stays float, where no target says which do."""

_SHAPES = frozenset({"Shape", "Size"})
_ONE_INPUT = ARITHMETIC - {"Add", "Mul", "Sub", "Div", "Concat"}


class IntegerSites:
    """The inputs of nodes and the outputs of the model that are integers; which tensors share a scale.

    ``edges`` holds ``(id(node), index of the input)``, ``outputs`` ids of tensors that are quantized for
    being outputs, ``zone`` ids of nodes that never compute in integers.
    """

    def __init__(
        self,
        graph: gs.Graph,
        takes: Callable[[gs.Node], bool],
        *,
        arithmetic: bool = True,
        share_slices: bool | str = False,
        kernels: Target | None = None,
        facts: GraphFacts | None = None,
    ) -> None:
        """Walk the outermost graph; ``takes`` says of which nodes the scheme wants integers at all.

        ``share_slices``: whether parts have the scale of the whole; ``auto``: those that no product reads.

        Without ``arithmetic`` products with stored weights alone read integers, and no output is one.

        With ``kernels`` only the operators of that target compute in integers, and what its closed operators
        make is an integer for every consumer. ``facts``: those of the graph, if they were asked for before.
        """
        self._graph, self._takes, self._share_slices, self._kernels = graph, takes, share_slices, kernels
        self._ends = _OPEN_ENDS if kernels is None else kernels.open_ends
        facts = facts or GraphFacts(graph)
        self._masking, self._masked, self.floats = facts.masking, facts.counted_sentinels, facts.floats
        self.zone = set(facts.zone)
        for node in graph.nodes if self._masked else ():
            if not is_dot_product(node) and not self._masked.isdisjoint(map(id, node.inputs)):
                self.zone.add(id(node))
        self._data = {id(node): [0] if self._divides(node) else _data(node) for node in graph.nodes}
        self.layers: set[int] = set()
        for node in graph.nodes:  # one after another: arithmetic is a layer on what layers make
            has_kernel = kernels is None or node.op in kernels.operators
            if has_kernel and takes(node) and self._is_layer(node, arithmetic):
                self.layers.add(id(node))
        self._last = self._find_last()
        self._moves: set[int] = set()
        self._open: set[int] = set()
        self._find_moves_and_open()
        inputs = [(node, i) for node in graph.nodes for i in range(len(node.inputs))]
        self.edges = {(id(node), i) for node, i in inputs if self._reads(node, i)}
        outputs = graph.outputs if arithmetic else ()
        self.outputs = {id(tensor) for tensor in outputs if self._is_integer_output(tensor)}

    def source(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the tensor whose scale a tensor has: the one that was moved to where it is."""
        while (node := walk.producer(tensor)) is not None and id(node) in self._moves:
            if self._is_apart(node) or isinstance(node.inputs[0], gs.Constant):
                break
            tensor = node.inputs[0]
        return tensor

    def _is_apart(self, node: gs.Node) -> bool:
        """Return whether the parts that a node cuts out have scales of their own."""
        if node.op not in SLICES or self._share_slices is True:
            return False
        return not self._share_slices or any(map(is_operand_moved, node.outputs))

    def maker(self, tensor: gs.Tensor) -> gs.Node | None:
        """Return the integer layer that makes a tensor, moved or not; None where something else does."""
        node = walk.producer(tensor)
        while node is not None and is_move(node):
            node = walk.producer(node.inputs[0])
        return node if node is not None and id(node) in self.layers else None

    def closed_layer(self, tensor: gs.Tensor) -> gs.Node | None:
        """Return the layer that makes a tensor, rectified or not, if its kernel writes integers alone."""
        node = walk.producer(tensor)
        while node is not None and (before := self._continued(node)) is not None:
            node = walk.producer(before)
        if node is None or self._kernels is None or id(node) not in self.layers:
            return None
        return node if node.op in self._kernels.closed else None

    def closed_ends(self) -> list[str]:
        """Return the names of the tensors that are integers for the kernel of a closed layer alone.

        No layer reads them: without that kernel they would be float.
        """
        layers = [node for node in self._graph.nodes if id(node) in self.layers]
        read = {id(node.inputs[i]) for node in layers for i in self._data[id(node)]}
        uses = ((node, tensor) for node in self._graph.nodes for tensor in node.inputs)
        ends = (tensor for node, tensor in uses if id(tensor) not in read and id(node) not in self._moves)
        return [str(end.name) for end in ends if self.closed_layer(end) is not None]

    def origin(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the result of a layer, or the input, that moves, rectifiers and an added bias go on with."""
        while (node := walk.producer(tensor)) is not None:
            before = node.inputs[0] if is_move(node) else self._continued(node)
            if before is None:
                break
            tensor = before
        return tensor

    def _divides(self, node: gs.Node) -> bool:
        """Return whether a node divides by what is computed, and no kernel of integers does."""
        return node.op == "Div" and self._kernels is None and not isinstance(node.inputs[1], gs.Constant)

    def _is_layer(self, node: gs.Node, arithmetic: bool) -> bool:
        """Return whether a node may compute in integers, without ``arithmetic`` a product alone."""
        if _is_whole_product(node):
            return arithmetic or products.weight_index(node) is not None
        return arithmetic and self._is_arithmetic(node)

    def _is_arithmetic(self, node: gs.Node) -> bool:
        if onnx_op(node) not in ARITHMETIC or id(node) in self.zone or id(node) in self.floats:
            return False
        if self._divides(node) and _is_norm(*node.inputs):
            return False
        if node.op == "Clip" and any(isinstance(t, gs.Variable) for t in node.inputs[1:] if not t.is_empty()):
            return False
        data = [node.inputs[i] for i in self._data[id(node)] if not isinstance(node.inputs[i], gs.Constant)]
        return bool(data) and any(self.maker(t) is not None for t in data)

    def _find_last(self) -> set[int]:
        """Return the Concats and moves from which only such nodes lead on, to outputs of the model."""
        found: set[int] = set()
        for node in reversed(self._graph.nodes):
            consumers = [user for tensor in node.outputs for user in tensor.outputs]
            if (node.op == "Concat" or is_move(node)) and all(id(user) in found for user in consumers):
                found.add(id(node))
        return found

    def _find_moves_and_open(self) -> None:
        """Find the moves that lead to integer layers alone, or from one to an output of the model, and the
        layers without a kernel to lose whose result nothing reads as integers.
        """
        for node in reversed(self._graph.nodes):  # so that all is known of what reads the results of one
            if is_move(node) and keeps_grid(node) and self._takes(node):
                if self._are_integers([one for one in node.outputs if dtypes.is_type(one, dtypes.FLOAT)]):
                    self._moves.add(id(node))
            elif id(node) in self.layers and self._is_plain(node) and not self._is_rounded(node.outputs[0]):
                self._open.add(id(node))

    def _is_plain(self, node: gs.Node) -> bool:
        """Return whether a layer needs no integers to be fast, and is not the bias of one that does."""
        return node.op in _PLAIN and self._continued(node) is None

    def _is_rounded(self, tensor: gs.Tensor) -> bool:
        """Return whether something reads a tensor as integers, rectified or moved or as it is."""
        pending = [tensor]
        while pending:
            one = pending.pop()
            uses = walk.uses(one)
            if self._is_integer_output(one) or any(self._reads(*use) for use in uses):
                return True
            for node, index in uses:
                if (is_move(node) and index == 0) or self._continued(node) is one:
                    pending += node.outputs
        return False

    def _are_integers(self, tensors: list[gs.Tensor]) -> bool:
        """Return whether everything that reads the numbers of some tensors reads integers."""
        outputs = [tensor for tensor in tensors if walk.is_output(tensor, self._graph)]
        uses = [(n, i) for tensor in tensors for n, i in walk.uses(tensor) if n.op not in _SHAPES]
        integers = (*(self._reads(node, i) for node, i in uses), *map(self._is_integer_output, outputs))
        return any(integers) and all(integers)

    def _reads(self, node: gs.Node, index: int) -> bool:
        """Return whether an input of a node is an integer; of moves only those found so far are known."""
        tensor = node.inputs[index]
        if id(node) in self.floats:
            return False
        if id(node) in self._moves:
            return index == 0 and not isinstance(tensor, gs.Constant)
        if self._continued(node) is not None:
            return False
        if id(node) not in self.layers or index not in self._data[id(node)]:
            return self.closed_layer(tensor) is not None
        maker = self.maker(tensor)
        if id(node) in self._open and (maker is None or self._is_plain(maker) or maker.op in self._ends):
            return self.closed_layer(tensor) is not None
        return id(node) not in self._last or maker is None or maker.op != "Concat"

    def _is_integer_output(self, tensor: gs.Tensor) -> bool:
        """Return whether the tensor is an output made by a layer; of a Concat the parts have scales."""
        if id(tensor) in self._masked:
            return False
        maker = self.maker(tensor)
        return maker is not None and maker.op != "Concat" and walk.is_output(tensor, self._graph)

    def _continued(self, node: gs.Node) -> gs.Tensor | None:
        """Return the result of a layer with which the node goes on, unseen; a mask sets no range of it."""
        if node.op in _RECTIFIERS:
            makers = _RECTIFIED | {"Concat"} if node.op == "Clip" else _RECTIFIED
            return node.inputs[0] if self._is_unseen(node.inputs[0], makers) else None
        if (
            node.op != "Add"
            or id(node) in self._masking
            or not any(isinstance(tensor, gs.Constant) for tensor in node.inputs)
        ):
            return None
        return next((t for t in node.inputs if self._is_unseen(self._moved(t), DOT_PRODUCTS)), None)

    def _moved(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the tensor that moves brought to where it is, back to one that something else sees."""
        while self._is_unseen(tensor, MOVES):
            tensor = tensor.inputs[0].inputs[0]
        return tensor

    def _is_unseen(self, tensor: gs.Tensor, makers: Collection[str]) -> bool:
        """Return whether such a node makes a tensor that one input of one node alone reads."""
        maker = walk.producer(tensor)
        if maker is None or onnx_op(maker) not in makers or walk.is_output(tensor, self._graph):
            return False
        return walk.is_read_once(tensor)


def _is_norm(tensor: gs.Tensor, divisor: gs.Tensor) -> bool:
    """Return whether a divisor is made of what is divided, without layers between them."""
    makers = walk.makers([divisor], lambda node: not is_dot_product(node) and node.op not in _SHAPES)
    return any(read is tensor for maker in makers.values() for read in maker.inputs)


def _is_whole_product(node: gs.Node) -> bool:
    """Return whether a node is a dot product, but not of outliers that were taken out of another one."""
    return is_dot_product(node) and not is_of_outliers(node)


def _data(node: gs.Node) -> list[int]:
    """Return which inputs a node computes with: operands, addends, not bounds, shapes or biases."""
    if node.op in _ONE_INPUT:
        return [0]
    dot_product = is_dot_product(node)
    return [i for i in range(len(node.inputs)) if not dot_product or products.is_operand(node, i)]
