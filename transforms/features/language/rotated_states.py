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
from transforms.channels.per_channel import PerChannel, is_stored, outputs_of
from transforms.features.language.kept_channels import keeps_channels
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.embeddings import heads, is_lookup, is_table
from transforms.graph.rewire import onnx_op
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
    """Scales and biases (None if they are 0) of a normalization, for layers to take in."""

    scale: Float64Array
    bias: Float64Array | None = None


@dataclass
class RotatedStates:
    """What changes if the rows of a table are rotated; raises NotRotatableError if something must not.

    ``written``: initializers that make rotated channels, weights of products among them; ``read``: products
    that sum over rotated channels, with the scales and biases that they take in, None for none; ``heads``:
    those of them whose weight is a table; ``scales``, ``biases``: the initializers that they replace.
    """

    graph: gs.Graph
    table: gs.Constant
    written: list[PerChannel] = field(default_factory=list)
    read: list[tuple[gs.Node, Affine | None]] = field(default_factory=list)
    heads: list[tuple[gs.Node, Affine | None]] = field(default_factory=list)
    scales: list[PerChannel] = field(default_factory=list)
    biases: list[PerChannel] = field(default_factory=list)
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
            if affine is None and not self._goes_back(tensor):
                raise NotRotatableError(f"what makes '{tensor.name}' cannot take a rotation in")
            for node, index in walk.uses(tensor):
                if id(node) not in self._members or not self._goes_on(tensor, node, index, affine):
                    raise NotRotatableError(f"'{node.name}' ({node.op}) on '{tensor.name}' does not commute")
        self._check_tables()

    @property
    def has_scales(self) -> bool:
        """Whether a normalization has scales other than 1, or biases other than 0."""
        is_scaled = any(np.any(held.constant.values != 1) for held in self.scales)
        return is_scaled or any(np.any(held.constant.values) for held in self.biases)

    @property
    def changed(self) -> Iterator[gs.Node]:
        """The nodes whose stored numbers change, except those that read rows of a table."""
        yield from (held.node for held in (*self.written, *self.scales, *self.biases))
        yield from (node for node, _ in (*self.read, *self.heads))

    def _add_table(self, table: gs.Constant) -> bool:
        """Note a table whose rows are rotated, and follow them; return whether they can be."""
        if any(table is other for other in self.tables):
            return True
        self.tables.append(table)
        lookups = [node for node in table.outputs if is_lookup(node, table)]
        return int(table.shape[1]) == self._width and all(self._follow(one.outputs[0]) for one in lookups)

    def _check_tables(self) -> None:
        """Refuse tables that something else reads, as a head of states that are not rotated."""
        known = {id(node) for node, _ in self.heads}
        for table in self.tables:
            for node in table.outputs:
                of_node = heads(node, table)
                if not is_lookup(node, table) and not (of_node and all(id(one) in known for one in of_node)):
                    raise NotRotatableError(f"'{node.name}' reads the table '{table.name}'")

    def _follow(self, tensor: gs.Tensor, affine: Affine | None = None) -> bool:
        """Note a tensor that is rotated, to be scaled where it is read; return whether it can be."""
        if id(tensor) in self._affines:
            return (affine is None) == (self._affines[id(tensor)] is None)
        self._affines[id(tensor)] = affine
        self._pending.append(tensor)
        return id(tensor) not in self._ends and not isinstance(tensor, gs.Constant)

    def _goes_back(self, tensor: gs.Tensor) -> bool:
        """Rotate the tensors that a rotated one is made of; return whether that can be done."""
        node = walk.producer(tensor)
        if node is None or not node.inputs or id(node) not in self._members:
            return False
        op, first = onnx_op(node), node.inputs[0]
        if op == "Gather" and is_table(first) and is_lookup(node, first):
            return self._add_table(first)
        if op in _PRODUCTS and self._is_weight(node):
            has_bias = len(node.inputs) > 2 and not node.inputs[2].is_empty()
            return self._write(outputs_of(node)) and (not has_bias or self._write(PerChannel(node, 2, -1)))
        if op in _SUMS:
            return all(self._rotate_input(node, index) for index in range(len(node.inputs)))
        if op in _FACTORS:
            of_rows = [self._is_row_factor(one) for one in node.inputs]
            is_scaled = sum(of_rows) == 1 and not (op == "Div" and of_rows[0])
            return is_scaled and self._follow(node.inputs[of_rows.index(False)])
        if keeps_channels(node, self._constants):
            return self._rotate_input(node, 0)
        return tensor is node.outputs[0] and id(first) in self._affines

    def _goes_on(self, tensor: gs.Tensor, node: gs.Node, index: int, affine: Affine | None) -> bool:
        """Rotate the tensors that a node makes of a rotated one; return whether that can be done."""
        op, result = onnx_op(node), node.outputs[0]
        if op in _SIZES:
            return True
        if op in _PRODUCTS and index == 0 and not node.attrs.get("transA", 0):
            return self._multiply(node, affine)
        if index == 0 and keeps_channels(node, self._constants):
            return self._follow(result, affine)
        if affine is not None:
            return op == "Add" and self._take_bias(PerChannel(node, 1 - index, -1), affine)
        if op in _SUMS:
            return self._follow(result)
        if op in _MEANS | _LENGTHS:
            return self._reduces_rows(node)
        if op in _FACTORS:
            return self._multiply_by(tensor, node, index)
        if op == "Pow" and index == 0:
            return self._constants.scalar(node.inputs[1]) == 2 and self._is_summed(result)
        return op in _NORMS and index == 0 and self._normalize(node)

    def _multiply(self, node: gs.Node, affine: Affine | None) -> bool:
        """Note a product with a table, or with a stored matrix of its own."""
        weight, transpose = node.inputs[1], walk.producer(node.inputs[1])
        reader, table = node, weight
        if transpose is not None and transpose.inputs:
            reader, table = transpose, transpose.inputs[0]
        is_head = is_table(table) and any(node is head for head in heads(reader, table))
        (self.heads if is_head else self.read).append((node, affine))
        return is_head or self._is_weight(node)

    def _multiply_by(self, tensor: gs.Tensor, node: gs.Node, index: int) -> bool:
        """Rotate the product of a rotated tensor with factors of rows or channels, or take its squares."""
        other = node.inputs[1 - index]
        if other is tensor:
            return node.op == "Mul" and self._is_summed(node.outputs[0])
        if self._is_row_factor(other):
            return (node.op == "Mul" or index == 0) and self._follow(node.outputs[0])
        return node.op == "Mul" and self._take_scale(PerChannel(node, 1 - index, -1))

    def _normalize(self, node: gs.Node) -> bool:
        """Let layers take in the scales and biases of a normalization over the last axis."""
        rank = len(node.inputs[0].shape or ())
        if int(node.attrs.get("axis", -1)) not in (-1, rank - 1) or not self._is_vector(node.inputs[1]):
            return False
        scale = PerChannel(node, 1, -1)
        if len(node.inputs) < 3 or node.inputs[2].is_empty():
            return self._take_scale(scale)
        self.scales.append(scale)
        return self._take_bias(PerChannel(node, 2, -1), Affine(_vector(scale)))

    def _take_scale(self, held: PerChannel) -> bool:
        if not self._is_vector(held.constant):
            return False
        self.scales.append(held)
        return self._follow(held.node.outputs[0], Affine(_vector(held)))

    def _take_bias(self, held: PerChannel, affine: Affine) -> bool:
        if not self._is_vector(held.constant):
            return False
        self.biases.append(held)
        bias = _vector(held) if affine.bias is None else affine.bias + _vector(held)
        return self._follow(held.node.outputs[0], replace(affine, bias=bias if np.any(bias) else None))

    def _rotate_input(self, node: gs.Node, index: int) -> bool:
        """Rotate an addend, or rows that a node chooses, unless it is one number for each row."""
        tensor = node.inputs[index]
        if is_stored(tensor, self._ends) and tuple(tensor.shape)[-1:] == (self._width,):
            return self._write(PerChannel(node, index, -1))
        return self._is_row_factor(tensor) or self._follow(tensor)

    def _write(self, held: PerChannel) -> bool:
        """Note an initializer that makes rotated channels; return whether it has a number for each."""
        if not any(held.node is other.node and held.index == other.index for other in self.written):
            self.written.append(held)
        return is_stored(held.constant, self._ends) and held.channels == self._width

    def _is_summed(self, squares: gs.Tensor) -> bool:
        """Return whether of squares nothing is read but their sum over all channels."""
        users = [node for node, _ in walk.uses(squares)]
        are_means = all(onnx_op(node) in _MEANS and self._reduces_rows(node) for node in users)
        return are_means and id(squares) not in self._ends

    def _reduces_rows(self, node: gs.Node) -> bool:
        shape = shape_of(node.inputs[0])
        return reduced_axes(node, None if shape is None else len(shape), self._constants) == (-1,)

    def _is_row_factor(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor has one number for each row."""
        return size(tensor, -1) == 1 or shape_of(tensor) == ()

    def _is_vector(self, tensor: gs.Tensor) -> bool:
        shape = tuple(tensor.shape or ())
        return is_stored(tensor, self._ends) and shape[-1:] == (self._width,) == (math.prod(shape),)

    def _is_weight(self, node: gs.Node) -> bool:
        weight = node.inputs[1]
        return is_stored(weight, self._ends) and len(weight.shape) == 2 and not is_table(weight)


def _vector(held: PerChannel) -> Float64Array:
    return np.asarray(held.constant.values, np.float64).reshape(-1)
