"""Which values of a model are rounded to integers, as in ONNX Runtime's static quantization.

Integers are read by

* dot products: Conv, ConvTranspose, Gemm, MatMul, both operands; not the narrow product of outlying channels
  that were split off another one, which would set its range (:mod:`transforms.move_outliers`);
* arithmetic on their results: Add, Mul, Concat, AveragePool, GlobalAveragePool, LeakyRelu, Sigmoid, and so
  on, except in a zone that stays float (:mod:`transforms.plan.float_only_nodes`);
* operators that only move numbers (:mod:`transforms.plan.integer_moves`) if all readers of the result take
  integers; results have the scale of their input, those of Slice and Split where the scheme aligns slices.

A layer's output is quantized once, at its end: not between a dot product and the bias that an Add puts on
it, moved or not, nor before a Relu or Clip that is the only reader of a dot product, sum, product or ratio,
nor before a Clip that is the only reader of a Concat. Outputs of the model are quantized where such a layer
computes them, except a Concat, or Concats of Concats: their inputs are, so that boxes and scores in one
output each keep their own scale.

These stay float: nodes that compute with sentinels, beside ordinary numbers
(:mod:`transforms.plan.sentinels`), and nodes that integer kernels would compute wrongly, with their inputs
(:mod:`transforms.plan.integer_moves`).

A computed divisor is an integer only for targets with a kernel for it: close to zero, equal steps are as
large as the numbers, and a norm is one number for each sample, so that few samples show no range. A tensor
divided by its own norm stays float with it: clipped at the end of its range, it would have another norm.

A sum, difference, product or ratio whose result nothing reads as integers computes in float anyway. Its
operands are integers only if a convolution or an activation computes them, whose kernels can only write
integers; those of Gemm and MatMul can also write float32.
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
"""Operators besides dot products that read and write integers."""

SLICES = frozenset({"Slice", "Split"})

_RECTIFIERS = frozenset({"Relu", "Clip"})
_RECTIFIED = frozenset({*DOT_PRODUCTS, "Add", "Sub", "Mul", "Div"})
_PLAIN = frozenset({"Add", "Sub", "Mul", "Div"})
"""Layers that compute in float between DequantizeLinear and QuantizeLinear at no cost if the latter is
missing: a dot product or an activation would lose its integer kernel.
"""

_OPEN_ENDS = frozenset({"Gemm", "MatMul"})
"""Layers that compute in integers even if their output stays float, where no target lists such layers."""

_SHAPES = frozenset({"Shape", "Size"})
_ONE_INPUT = ARITHMETIC - {"Add", "Mul", "Sub", "Div", "Concat"}


class IntegerSites:
    """The integer inputs of nodes and outputs of the model, and the tensors that share a scale.

    ``edges`` holds ``(id(node), index of the input)``, ``outputs`` ids of tensors that are quantized because
    they are outputs, ``zone`` ids of nodes that never compute in integers.
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
        """Walk the outermost graph; ``takes`` tells for which nodes the scheme wants integers.

        ``share_slices``: whether parts have the scale of the whole; ``auto``: those that no product reads.

        Without ``arithmetic`` only products with stored weights read integers, and no output is an integer.

        With ``kernels`` only the operators of that target compute in integers, and the output of its closed
        operators is an integer for every consumer. ``facts``: those of the graph, if already computed.
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
        for node in graph.nodes:  # in order: arithmetic on outputs of layers is a layer
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
        """Return the tensor that gives a tensor its scale: the source of the moves that lead to it."""
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
        """Return the integer layer that computes a tensor, moved or not; None for other tensors."""
        node = walk.producer(tensor)
        while node is not None and is_move(node):
            node = walk.producer(node.inputs[0])
        return node if node is not None and id(node) in self.layers else None

    def closed_layer(self, tensor: gs.Tensor) -> gs.Node | None:
        """Return the layer that computes a tensor, rectified or not, if its kernel only writes integers."""
        node = walk.producer(tensor)
        while node is not None and (before := self._continued(node)) is not None:
            node = walk.producer(before)
        if node is None or self._kernels is None or id(node) not in self.layers:
            return None
        return node if node.op in self._kernels.closed else None

    def closed_ends(self) -> list[str]:
        """Return the names of tensors that are integers only because of the kernel of a closed layer.

        No layer reads them: without that kernel they would be float.
        """
        layers = [node for node in self._graph.nodes if id(node) in self.layers]
        read = {id(node.inputs[i]) for node in layers for i in self._data[id(node)]}
        uses = ((node, tensor) for node in self._graph.nodes for tensor in node.inputs)
        ends = (tensor for node, tensor in uses if id(tensor) not in read and id(node) not in self._moves)
        return [str(end.name) for end in ends if self.closed_layer(end) is not None]

    def origin(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the layer output or model input that a tensor continues by moves, rectifiers and biases."""
        while (node := walk.producer(tensor)) is not None:
            before = node.inputs[0] if is_move(node) else self._continued(node)
            if before is None:
                break
            tensor = before
        return tensor

    def _divides(self, node: gs.Node) -> bool:
        """Return whether a node has a computed divisor, and no integer kernel supports it."""
        return node.op == "Div" and self._kernels is None and not isinstance(node.inputs[1], gs.Constant)

    def _is_layer(self, node: gs.Node, arithmetic: bool) -> bool:
        """Return whether a node may compute in integers; without ``arithmetic`` only products."""
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
        """Return the Concats and moves whose consumers all are such nodes, up to outputs of the model."""
        last: set[int] = set()
        for node in reversed(self._graph.nodes):
            consumers = [user for tensor in node.outputs for user in tensor.outputs]
            if (node.op == "Concat" or is_move(node)) and all(id(user) in last for user in consumers):
                last.add(id(node))
        return last

    def _find_moves_and_open(self) -> None:
        """Find the moves whose consumers all take integers, and layers that may as well compute in float.

        The latter lose no integer kernel, and nothing reads their result as integers.
        """
        for node in reversed(self._graph.nodes):  # consumers before producers
            if is_move(node) and keeps_grid(node) and self._takes(node):
                if self._are_integers(
                    [output for output in node.outputs if dtypes.is_type(output, dtypes.FLOAT)]
                ):
                    self._moves.add(id(node))
            elif id(node) in self.layers and self._is_plain(node) and not self._is_rounded(node.outputs[0]):
                self._open.add(id(node))

    def _is_plain(self, node: gs.Node) -> bool:
        """Return whether a layer is as fast in float, and is not the added bias of an integer layer."""
        return node.op in _PLAIN and self._continued(node) is None

    def _is_rounded(self, tensor: gs.Tensor) -> bool:
        """Return whether any consumer reads a tensor as integers, directly, rectified or moved."""
        pending = [tensor]
        while pending:
            current = pending.pop()
            uses = walk.uses(current)
            if self._is_integer_output(current) or any(self._reads(*use) for use in uses):
                return True
            for node, index in uses:
                if (is_move(node) and index == 0) or self._continued(node) is current:
                    pending += node.outputs
        return False

    def _are_integers(self, tensors: list[gs.Tensor]) -> bool:
        """Return whether every consumer of some tensors reads integers."""
        outputs = [tensor for tensor in tensors if walk.is_output(tensor, self._graph)]
        uses = [(n, i) for tensor in tensors for n, i in walk.uses(tensor) if n.op not in _SHAPES]
        integers = (*(self._reads(node, i) for node, i in uses), *map(self._is_integer_output, outputs))
        return any(integers) and all(integers)

    def _reads(self, node: gs.Node, index: int) -> bool:
        """Return whether an input of a node is an integer; moves count as far as they are found so far."""
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
        """Return whether a tensor is an output computed by a layer; a Concat's parts have scales instead."""
        if id(tensor) in self._masked:
            return False
        maker = self.maker(tensor)
        return maker is not None and maker.op != "Concat" and walk.is_output(tensor, self._graph)

    def _continued(self, node: gs.Node) -> gs.Tensor | None:
        """Return the layer output that a rectifier or bias node continues, or None; no mask is a bias."""
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
        """Return the tensor before the moves that lead to a tensor, back to one with other readers."""
        while self._is_unseen(tensor, MOVES):
            tensor = tensor.inputs[0].inputs[0]
        return tensor

    def _is_unseen(self, tensor: gs.Tensor, makers: Collection[str]) -> bool:
        """Return whether one of these operators computes a tensor with a single reader."""
        maker = walk.producer(tensor)
        if maker is None or onnx_op(maker) not in makers or walk.is_output(tensor, self._graph):
            return False
        return walk.is_read_once(tensor)


def _is_norm(tensor: gs.Tensor, divisor: gs.Tensor) -> bool:
    """Return whether a divisor is computed from the dividend, without layers between them."""
    makers = walk.makers([divisor], lambda node: not is_dot_product(node) and node.op not in _SHAPES)
    return any(read is tensor for maker in makers.values() for read in maker.inputs)


def _is_whole_product(node: gs.Node) -> bool:
    """Return whether a node is a dot product other than a split-off product of outliers."""
    return is_dot_product(node) and not is_of_outliers(node)


def _data(node: gs.Node) -> list[int]:
    """Return the indices of inputs that are data: operands and addends, not bounds, shapes or biases."""
    if node.op in _ONE_INPUT:
        return [0]
    dot_product = is_dot_product(node)
    return [i for i in range(len(node.inputs)) if not dot_product or products.is_operand(node, i)]
