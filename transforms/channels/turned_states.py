"""Which tensors of a transformer an orthogonal matrix can turn, and which weights take it in.

From the rows of an embedding on, every tensor that is added to a turned one, or follows from it by operators
that commute with the matrix, is turned as well. A node that does not commute ends the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float64Array
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.embeddings import heads, is_lookup, is_table
from transforms.graph.rewire import STANDARD_DOMAINS, onnx_op
from transforms.graph.shapes import reduced_axes, shape_of, size

_SAME = frozenset({"Identity", "Cast"})
_RESHAPED = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_SUMS = frozenset({"Add", "Sub"})
_FACTORS = frozenset({"Mul", "Div"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_MEANS = frozenset({"ReduceMean", "ReduceSum"})
_LENGTHS = frozenset({"ReduceL2", "ReduceSumSquare"})
_SIZES = frozenset({"Shape", "Size"})
_NORMS = frozenset({"RMSNormalization", "SimplifiedLayerNormalization"})


class NotTurnableError(ValueError):
    """A tensor that cannot be turned, or that must not change."""


@dataclass
class TurnedStates:
    """What changes if the rows of a table are turned; raises NotTurnableError if something must not.

    ``written``: constants, by their node and input, whose last axis is turned, or the results of a product;
    ``read``: products that read turned numbers, with the scales that they take in, None for none; ``heads``:
    those of them whose weight is a table; ``ones``: the constants whose scales were taken in.
    """

    graph: gs.Graph
    table: gs.Constant
    written: list[tuple[gs.Node, int]] = field(default_factory=list)
    read: list[tuple[gs.Node, Float64Array | None]] = field(default_factory=list)
    heads: list[tuple[gs.Node, Float64Array | None]] = field(default_factory=list)
    ones: list[tuple[gs.Node, int]] = field(default_factory=list)
    tables: list[gs.Constant] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Walk through the graph."""
        self._constants = Constants(self.graph)
        self._width = int(self.table.shape[1])
        self._members = {id(node) for node in self.graph.nodes}
        self._ends = walk.outputs(self.graph)
        self._scales: dict[int, Float64Array | None] = {}
        self._pending: list[gs.Tensor] = []
        self._add_table(self.table)
        while self._pending:
            tensor = self._pending.pop()
            scale = self._scales[id(tensor)]
            if scale is None:
                self._go_back(tensor)
            for node, index in walk.uses(tensor):
                self._go_on(tensor, node, index, scale)
        self._check_tables()

    @property
    def has_scales(self) -> bool:
        """Whether a normalization has scales other than 1."""
        return any(np.any(node.inputs[index].values != 1) for node, index in self.ones)

    @property
    def changed(self) -> Iterator[gs.Node]:
        """The nodes whose stored numbers change, but for those that read rows of a table."""
        return (node for node, _ in (*self.written, *self.ones, *self.read, *self.heads))

    def _follow(self, tensor: gs.Tensor, scale: Float64Array | None = None) -> None:
        """Note a tensor that is turned, to be scaled where it is read."""
        if id(tensor) in self._scales:
            if (scale is None) != (self._scales[id(tensor)] is None):
                raise NotTurnableError(f"'{tensor.name}' is read with and without scales")
            return
        if id(tensor) in self._ends or isinstance(tensor, gs.Constant):
            raise NotTurnableError(f"'{tensor.name}' is an output, or stored")
        self._scales[id(tensor)] = scale
        self._pending.append(tensor)

    def _add_table(self, table: gs.Constant) -> None:
        if any(table is other for other in self.tables):
            return
        self.tables.append(table)
        for node in table.outputs:
            if is_lookup(node, table):
                self._follow(node.outputs[0])

    def _check_tables(self) -> None:
        """Refuse tables that something else reads, as a head of states that are not turned."""
        known = {id(node) for node, _ in self.heads}
        for table in self.tables:
            for node in table.outputs:
                of_node = heads(node, table)
                if not is_lookup(node, table) and not (of_node and all(id(one) in known for one in of_node)):
                    raise NotTurnableError(f"'{node.name}' reads the table '{table.name}'")

    def _go_back(self, tensor: gs.Tensor) -> None:
        """Turn what a tensor is made of."""
        node = walk.producer(tensor)
        if node is None or id(node) not in self._members:
            raise NotTurnableError(f"'{tensor.name}' is an input, or made in another graph")
        op, first = onnx_op(node), node.inputs[0]
        if op == "Gather" and is_table(first) and is_lookup(node, first):
            self._add_table(first)
        elif op in _PRODUCTS and self._is_weight(node):
            self._write(node, 1)
            if len(node.inputs) > 2 and not node.inputs[2].is_empty():
                self._write(node, 2)
        elif op in _SUMS:
            for index, addend in enumerate(node.inputs):
                self._add_addend(node, index, addend)
        elif op in _FACTORS:
            factors = [self._is_row_factor(one) for one in node.inputs]
            if sum(factors) != 1 or (op == "Div" and factors[0]):
                raise NotTurnableError(f"'{node.name}' is no factor of a row")
            self._follow(node.inputs[factors.index(False)])
        elif op in _SAME or (op in _RESHAPED and self._is_wide(first)):
            self._follow(first)
        elif tensor is not node.outputs[0] or id(first) not in self._scales:
            raise NotTurnableError(f"'{node.name}' ({node.op}) does not commute with a turn")

    def _go_on(self, tensor: gs.Tensor, node: gs.Node, index: int, scale: Float64Array | None) -> None:
        """Turn what is made of a tensor."""
        op, made = onnx_op(node), node.outputs[0]
        if id(node) not in self._members:
            raise NotTurnableError(f"'{node.name}' reads '{tensor.name}' in another graph")
        if op in _SIZES:
            return
        if op in _PRODUCTS and index == 0 and not node.attrs.get("transA", 0):
            self._multiply(node, scale)
        elif op in _SAME or (op in _RESHAPED and index == 0 and self._is_wide(made)):
            self._follow(made, scale)
        elif scale is not None:
            raise NotTurnableError(f"'{node.name}' ({node.op}) reads what is scaled")
        elif op in _SUMS:
            self._follow(made)
        elif op in _FACTORS:
            self._scale(tensor, node, index)
        elif op == "Pow" and index == 0 and self._constants.scalar(node.inputs[1]) == 2:
            self._check_mean(made)
        elif op in _LENGTHS:
            self._check_last_axis(node)
        elif node.op in _NORMS and node.domain in STANDARD_DOMAINS and index == 0:
            self._normalize(node)
        else:
            raise NotTurnableError(f"'{node.name}' ({node.op}) does not commute with a turn")

    def _multiply(self, node: gs.Node, scale: Float64Array | None) -> None:
        weight = node.inputs[1]
        turn = walk.producer(weight)
        table = weight if turn is None else turn.inputs[0]
        if is_table(table) and any(node is one for one in heads(node if turn is None else turn, table)):
            self.heads.append((node, scale))
        elif self._is_weight(node):
            self.read.append((node, scale))
        else:
            raise NotTurnableError(f"'{node.name}' multiplies by no stored matrix of its own")

    def _scale(self, tensor: gs.Tensor, node: gs.Node, index: int) -> None:
        other = node.inputs[1 - index]
        if other is tensor:
            if node.op != "Mul":
                raise NotTurnableError(f"'{node.name}' divides a tensor by itself")
            self._check_mean(node.outputs[0])
        elif self._is_row_factor(other) and (node.op == "Mul" or index == 0):
            self._follow(node.outputs[0])
        elif node.op == "Mul" and self._is_vector(other):
            self._take_scale(node, 1 - index, node.outputs[0])
        else:
            raise NotTurnableError(f"'{node.name}' multiplies by what is no factor of a row")

    def _normalize(self, node: gs.Node) -> None:
        rank = len(node.inputs[0].shape or ())
        if int(node.attrs.get("axis", -1)) not in (-1, rank - 1) or not self._is_vector(node.inputs[1]):
            raise NotTurnableError(f"'{node.name}' normalizes other axes, or has computed scales")
        self._take_scale(node, 1, node.outputs[0])

    def _take_scale(self, node: gs.Node, index: int, made: gs.Tensor) -> None:
        scale = np.asarray(node.inputs[index].values, np.float64).reshape(-1)
        self.ones.append((node, index))
        self._follow(made, np.broadcast_to(scale, (self._width,)))

    def _add_addend(self, node: gs.Node, index: int, addend: gs.Tensor) -> None:
        if self._is_vector(addend):
            self._write(node, index)
        else:
            self._follow(addend)

    def _write(self, node: gs.Node, index: int) -> None:
        constant = node.inputs[index]
        if not self._is_stored(constant) or (index == 2 and tuple(constant.shape)[-1:] != (self._width,)):
            raise NotTurnableError(f"'{constant.name}' of '{node.name}' is not stored in full")
        if not any(node is one and index == other for one, other in self.written):
            self.written.append((node, index))

    def _check_mean(self, squares: gs.Tensor) -> None:
        """Refuse squares of which more is read than their sum over all channels."""
        if id(squares) in self._ends:
            raise NotTurnableError(f"'{squares.name}' is an output")
        for node, _ in walk.uses(squares):
            if onnx_op(node) not in _MEANS:
                raise NotTurnableError(f"'{node.name}' ({node.op}) reads squares")
            self._check_last_axis(node)

    def _check_last_axis(self, node: gs.Node) -> None:
        shape = shape_of(node.inputs[0])
        if reduced_axes(node, None if shape is None else len(shape), self._constants) != (-1,):
            raise NotTurnableError(f"'{node.name}' reduces other axes than the last")

    def _is_wide(self, tensor: gs.Tensor) -> bool:
        return size(tensor, -1) == self._width

    def _is_row_factor(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor has one number for each row."""
        return size(tensor, -1) == 1 or shape_of(tensor) == ()

    def _is_vector(self, tensor: gs.Tensor) -> bool:
        return self._is_stored(tensor) and tuple(tensor.shape)[-1:] == (self._width,) == (tensor.values.size,)

    def _is_weight(self, node: gs.Node) -> bool:
        weight = node.inputs[1]
        return self._is_stored(weight) and len(weight.shape) == 2 and not is_table(weight)

    def _is_stored(self, tensor: gs.Tensor) -> bool:
        return isinstance(tensor, gs.Constant) and tensor.dtype == np.float32 and id(tensor) not in self._ends
