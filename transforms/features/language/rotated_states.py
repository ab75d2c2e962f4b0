"""Which tensors of a transformer an orthogonal matrix can rotate, and which weights take it in.

From the rows of an embedding on, every tensor that is added to a rotated one, or follows from it by operators
that commute with the matrix, is rotated as well. A node that does not commute ends the search. The matrix
keeps the vector of ones: the mean of a row stays the same, and adding one number to a row commutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float64Array
from transforms.channels.per_channel import PerChannel, outputs_of
from transforms.features.language.kept_channels import keeps_channels
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.embeddings import heads, is_lookup, is_table
from transforms.graph.rewire import STANDARD_DOMAINS, onnx_op
from transforms.graph.shapes import reduced_axes, shape_of, size

_SUMS = frozenset({"Add", "Sub", "Sum"})
_FACTORS = frozenset({"Mul", "Div"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_MEANS = frozenset({"ReduceMean", "ReduceSum"})
_LENGTHS = frozenset({"ReduceL2", "ReduceSumSquare"})
_SIZES = frozenset({"Shape", "Size"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


class NotRotatableError(ValueError):
    """A tensor that cannot be rotated, or that must not change."""


@dataclass(frozen=True)
class Affine:
    """What a normalization multiplies its channels by, and what it adds then, for layers to take in."""

    scale: Float64Array
    bias: Float64Array | None = None


@dataclass
class RotatedStates:
    """What changes if the rows of a table are rotated; raises NotRotatableError if something must not.

    ``written``: constants, by their node and input, whose last axis is rotated, or the results of a product;
    ``read``: products that read rotated numbers, with the scales and biases that they take in, None for none;
    ``heads``: those of them whose weight is a table; ``scales``, ``biases``: the constants that they replace.
    """

    graph: gs.Graph
    table: gs.Constant
    written: list[PerChannel] = field(default_factory=list)
    read: list[tuple[gs.Node, Affine | None]] = field(default_factory=list)
    heads: list[tuple[gs.Node, Affine | None]] = field(default_factory=list)
    scales: list[tuple[gs.Node, int]] = field(default_factory=list)
    biases: list[tuple[gs.Node, int]] = field(default_factory=list)
    tables: list[gs.Constant] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Walk through the graph."""
        self._constants = Constants(self.graph)
        self._width = int(self.table.shape[1])
        self._members = {id(node) for node in self.graph.nodes}
        self._ends = walk.outputs(self.graph)
        self._affines: dict[int, Affine | None] = {}
        self._pending: list[gs.Tensor] = []
        self._add_table(self.table)
        while self._pending:
            tensor = self._pending.pop()
            affine = self._affines[id(tensor)]
            if affine is None:
                self._go_back(tensor)
            for node, index in walk.uses(tensor):
                self._go_on(tensor, node, index, affine)
        self._check_tables()

    @property
    def has_scales(self) -> bool:
        """Whether a normalization has scales other than 1, or biases other than 0."""
        is_scaled = any(np.any(node.inputs[index].values != 1) for node, index in self.scales)
        return is_scaled or any(np.any(node.inputs[index].values) for node, index in self.biases)

    @property
    def changed(self) -> Iterator[gs.Node]:
        """The nodes whose stored numbers change, except those that read rows of a table."""
        yield from (held.node for held in self.written)
        yield from (node for node, _ in (*self.scales, *self.biases, *self.read, *self.heads))

    def _follow(self, tensor: gs.Tensor, affine: Affine | None = None) -> None:
        """Note a tensor that is rotated, to be scaled where it is read."""
        if id(tensor) in self._affines:
            if (affine is None) != (self._affines[id(tensor)] is None):
                raise NotRotatableError(f"'{tensor.name}' is read with and without scales")
            return
        if id(tensor) in self._ends or isinstance(tensor, gs.Constant):
            raise NotRotatableError(f"'{tensor.name}' is an output, or stored")
        self._affines[id(tensor)] = affine
        self._pending.append(tensor)

    def _add_table(self, table: gs.Constant) -> None:
        if any(table is other for other in self.tables):
            return
        if int(table.shape[1]) != self._width:
            raise NotRotatableError(f"'{table.name}' has {table.shape[1]} columns, the states {self._width}")
        self.tables.append(table)
        for node in table.outputs:
            if is_lookup(node, table):
                self._follow(node.outputs[0])

    def _check_tables(self) -> None:
        """Refuse tables that something else reads, as a head of states that are not rotated."""
        known = {id(node) for node, _ in self.heads}
        for table in self.tables:
            for node in table.outputs:
                of_node = heads(node, table)
                if not is_lookup(node, table) and not (of_node and all(id(one) in known for one in of_node)):
                    raise NotRotatableError(f"'{node.name}' reads the table '{table.name}'")

    def _go_back(self, tensor: gs.Tensor) -> None:
        """Rotate the tensors that a rotated one is made of."""
        node = walk.producer(tensor)
        if node is None or not node.inputs or id(node) not in self._members:
            raise NotRotatableError(f"'{tensor.name}' is an input, or made of nothing or in another graph")
        op, first = onnx_op(node), node.inputs[0]
        if op == "Gather" and is_table(first) and is_lookup(node, first):
            self._add_table(first)
        elif op in _PRODUCTS and self._is_weight(node):
            self._write(node, 1)
            if len(node.inputs) > 2 and not node.inputs[2].is_empty():
                self._write(node, 2)
        elif op in _SUMS:
            for index in range(len(node.inputs)):
                self._rotate_input(node, index)
        elif op in _FACTORS:
            factors = [self._is_row_factor(one) for one in node.inputs]
            if sum(factors) != 1 or (op == "Div" and factors[0]):
                raise NotRotatableError(f"'{node.name}' is no factor of a row")
            self._follow(node.inputs[factors.index(False)])
        elif keeps_channels(node, self._constants):
            self._rotate_input(node, 0)
        elif tensor is not node.outputs[0] or id(first) not in self._affines:
            raise NotRotatableError(f"'{node.name}' ({node.op}) does not commute with a rotation")

    def _go_on(self, tensor: gs.Tensor, node: gs.Node, index: int, affine: Affine | None) -> None:
        """Rotate the tensors that are made of a rotated one."""
        op, made = onnx_op(node), node.outputs[0]
        if id(node) not in self._members:
            raise NotRotatableError(f"'{node.name}' reads '{tensor.name}' in another graph")
        if op in _SIZES:
            return
        if op in _PRODUCTS and index == 0 and not node.attrs.get("transA", 0):
            self._multiply(node, affine)
        elif index == 0 and keeps_channels(node, self._constants):
            self._follow(made, affine)
        elif affine is not None and op == "Add" and self._is_vector(node.inputs[1 - index]):
            self._take_bias(node, 1 - index, affine)
        elif affine is not None:
            raise NotRotatableError(f"'{node.name}' ({node.op}) reads what is scaled")
        elif op in _SUMS:
            self._follow(made)
        elif op in _MEANS:
            self._check_last_axis(node)
        elif op in _FACTORS:
            self._scale(tensor, node, index)
        elif op == "Pow" and index == 0 and self._constants.scalar(node.inputs[1]) == 2:
            self._check_mean(made)
        elif op in _LENGTHS:
            self._check_last_axis(node)
        elif node.op in _NORMS and node.domain in STANDARD_DOMAINS and index == 0:
            self._normalize(node)
        else:
            raise NotRotatableError(f"'{node.name}' ({node.op}) does not commute with a rotation")

    def _multiply(self, node: gs.Node, affine: Affine | None) -> None:
        weight = node.inputs[1]
        transpose = walk.producer(weight)
        reader, table = node, weight
        if transpose is not None and transpose.inputs:
            reader, table = transpose, transpose.inputs[0]
        if is_table(table) and any(node is head for head in heads(reader, table)):
            self.heads.append((node, affine))
        elif self._is_weight(node):
            self.read.append((node, affine))
        else:
            raise NotRotatableError(f"'{node.name}' multiplies by no stored matrix of its own")

    def _scale(self, tensor: gs.Tensor, node: gs.Node, index: int) -> None:
        other = node.inputs[1 - index]
        if other is tensor:
            if node.op != "Mul":
                raise NotRotatableError(f"'{node.name}' divides a tensor by itself")
            self._check_mean(node.outputs[0])
        elif self._is_row_factor(other) and (node.op == "Mul" or index == 0):
            self._follow(node.outputs[0])
        elif node.op == "Mul" and self._is_vector(other):
            self._take_scale(node, 1 - index)
        else:
            raise NotRotatableError(f"'{node.name}' multiplies by what is no factor of a row")

    def _normalize(self, node: gs.Node) -> None:
        rank = len(node.inputs[0].shape or ())
        if int(node.attrs.get("axis", -1)) not in (-1, rank - 1) or not self._is_vector(node.inputs[1]):
            raise NotRotatableError(f"'{node.name}' normalizes other axes, or has computed scales")
        if len(node.inputs) > 2 and not node.inputs[2].is_empty():
            if not self._is_vector(node.inputs[2]):
                raise NotRotatableError(f"'{node.name}' has computed biases")
            self.scales.append((node, 1))
            self._take_bias(node, 2, Affine(_vector(node.inputs[1])))
        else:
            self._take_scale(node, 1)

    def _take_scale(self, node: gs.Node, index: int) -> None:
        self.scales.append((node, index))
        self._follow(node.outputs[0], Affine(_vector(node.inputs[index])))

    def _take_bias(self, node: gs.Node, index: int, affine: Affine) -> None:
        self.biases.append((node, index))
        bias = _vector(node.inputs[index])
        self._follow(
            node.outputs[0], replace(affine, bias=bias if affine.bias is None else affine.bias + bias)
        )

    def _rotate_input(self, node: gs.Node, index: int) -> None:
        """Rotate an addend, or rows that a node chooses, unless it is one number for each row."""
        tensor = node.inputs[index]
        if self._is_stored(tensor) and tuple(tensor.shape)[-1:] == (self._width,):
            self._write(node, index)
        elif not self._is_row_factor(tensor):
            self._follow(tensor)

    def _write(self, node: gs.Node, index: int) -> None:
        constant = node.inputs[index]
        if not self._is_stored(constant) or (index == 2 and tuple(constant.shape)[-1:] != (self._width,)):
            raise NotRotatableError(f"'{constant.name}' of '{node.name}' is not stored in full")
        if not any(node is held.node and index == held.index for held in self.written):
            is_weight = index == 1 and onnx_op(node) in _PRODUCTS
            self.written.append(outputs_of(node) if is_weight else PerChannel(node, index, -1))

    def _check_mean(self, squares: gs.Tensor) -> None:
        """Refuse squares of which more is read than their sum over all channels."""
        if id(squares) in self._ends:
            raise NotRotatableError(f"'{squares.name}' is an output")
        for node, _ in walk.uses(squares):
            if onnx_op(node) not in _MEANS:
                raise NotRotatableError(f"'{node.name}' ({node.op}) reads squares")
            self._check_last_axis(node)

    def _check_last_axis(self, node: gs.Node) -> None:
        shape = shape_of(node.inputs[0])
        if reduced_axes(node, None if shape is None else len(shape), self._constants) != (-1,):
            raise NotRotatableError(f"'{node.name}' reduces other axes than the last")

    def _is_row_factor(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor has one number for each row."""
        return size(tensor, -1) == 1 or shape_of(tensor) == ()

    def _is_vector(self, tensor: gs.Tensor) -> bool:
        return self._is_stored(tensor) and tuple(tensor.shape)[-1:] == (self._width,) == (
            math.prod(tensor.shape),
        )

    def _is_weight(self, node: gs.Node) -> bool:
        weight = node.inputs[1]
        return self._is_stored(weight) and len(weight.shape) == 2 and not is_table(weight)

    def _is_stored(self, tensor: gs.Tensor) -> bool:
        return isinstance(tensor, gs.Constant) and tensor.dtype == np.float32 and id(tensor) not in self._ends


def _vector(tensor: gs.Constant) -> Float64Array:
    return np.asarray(tensor.values, np.float64).reshape(-1)
