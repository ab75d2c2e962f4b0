"""Embeddings stored in int8 with ONNX's own operators, once for lookups and the product that shares them.

Rounding commutes with reading rows: a Gather reads integers, and its output is dequantized. Each row has its
own scale, unless a layer multiplies by the same integers: then the scales of the layer are used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import DTypeLike, NDArray

from ops.integers import quantize, weight_scale
from ops.pair_sums import bound_pairs
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.embeddings import is_lookup
from transforms.graph.lazy_values import LARGE, constant, derived, load_values, stored_bytes
from transforms.graph.rewire import Insertions
from transforms.plan.weight_cache import WeightMemory

TABLE_FORMAT = "int8"
_MATRIX_RANK = 2
_INPUTS = 3  # of a DequantizeLinear as plans write it


def quantize_tables(
    graph: gs.Graph, tables: Sequence[gs.Constant], memory: WeightMemory | None = None
) -> int:
    """Store float32 tables in int8, symmetric; return how many. Run it after layers are quantized.

    Does nothing for a table with consumers other than Gathers of rows, or that is an output of a graph. If a
    DequantizeLinear already reads the rounded table, as it is or transposed, with one scale or one for each
    row, both share one constant. A table of less than 64 KiB is stored only in this case. ``memory`` is
    shared by several rewrites of copies of one graph.
    """
    outputs = walk.outputs(graph)
    lookup_tables = [table for table in tables if id(table) not in outputs and _is_read_by_rows(table)]
    writer = _Writer(graph, memory or WeightMemory()) if lookup_tables else None
    if writer is None:
        return 0
    count = sum(writer.store(table) for table in lookup_tables)
    writer.place()
    return count


def _is_read_by_rows(table: gs.Constant) -> bool:
    return bool(table.outputs) and all(is_lookup(node, table) for node in table.outputs)


class _Writer:
    def __init__(self, graph: gs.Graph, memory: WeightMemory) -> None:
        self._graph, self._memory, self._names = graph, memory, walk.Names(graph)
        self._insertions = Insertions()
        self._owners = {id(node): owner for owner in walk.graphs(graph) for node in owner.nodes}
        self._layers = [node for node in walk.nodes(graph) if _is_of_layer(node)]

    def place(self) -> None:
        """Insert all new nodes into their graphs."""
        self._insertions.place(self._graph)

    def store(self, table: gs.Constant) -> bool:
        """Let lookups read integers, shared with a layer if equal; return whether the table was stored."""
        lookups = list({id(node): node for node in table.outputs}.values())
        shared = self._shared(table)
        if shared is None and stored_bytes(table._values) < LARGE:
            return False
        stored, scale = shared or self._by_rows(table)
        for node in lookups:
            target, name = node.outputs[0], node.name
            numbers = self._variable(target, "quantized", np.int8, target.shape)
            node.name, node.inputs[0] = self._names.derive(name, "rows"), stored
            walk.replace_output(node, target, numbers)
            nodes = self._dequantize(numbers, scale, node.inputs[1], target)
            nodes[-1].name = name  # it has the output of the lookup
            self._insertions.add(self._owners[id(node)], node, nodes)
        table.values = np.empty(0, np.float32)
        return True

    def _dequantize(
        self, numbers: gs.Tensor, scale: gs.Constant, indices: gs.Tensor, target: gs.Tensor
    ) -> list[gs.Node]:
        """Return nodes that multiply rows by their scales; DequantizeLinear supports only one axis."""
        floats = self._variable(target, "integers", np.float32, target.shape)
        cast = self._node("Cast", [numbers], floats, to=dtypes.FLOAT)
        if scale.values.size == 1:
            return [cast, self._node("Mul", [floats, scale], target)]
        shape = None if indices.shape is None else list(indices.shape)
        row_scale = self._variable(target, "scale", np.float32, shape)
        column = self._variable(target, "scales", np.float32, None if shape is None else [*shape, 1])
        last = gs.Constant(self._names.derive(target.name, "axis"), np.array([-1], np.int64))
        return [
            cast,
            self._node("Gather", [scale, indices], row_scale, axis=0),
            self._node("Unsqueeze", [row_scale, last], column),
            self._node("Mul", [floats, column], target),
        ]

    def _by_rows(self, table: gs.Constant) -> tuple[gs.Constant, gs.Constant]:
        """Return the integers of a table and a scale for each row."""
        source = table._values
        scale = self._memory.recall(
            source, "scale of rows", lambda: weight_scale(load_values(source), TABLE_FORMAT, 0)
        )

        def _integers(values: NDArray[np.generic]) -> NDArray[np.generic]:
            return quantize(values, scale, np.zeros(len(scale), np.int8), TABLE_FORMAT, 0)

        stored = self._memory.recall(source, "integers of rows", lambda: derived(source, _integers, np.int8))
        names = [self._names.derive(table.name, suffix) for suffix in ("quantized", "scale")]
        return constant(names[0], stored), gs.Constant(names[1], scale)

    def _shared(self, table: gs.Constant) -> tuple[gs.Constant, gs.Constant] | None:
        """Return the integers of a layer as rows of a table, and the layer's scales, or None."""
        for layer in self._layers:
            stored, scale = layer.inputs[:2]
            if _rounds(layer, table, is_turned=False):
                return stored, scale
            if _rounds(layer, table, is_turned=True):
                rows = gs.Constant(self._names.derive(table.name, "quantized"), load(stored).T.copy())
                turned = self._variable(stored, "turned", np.int8, stored.shape)
                transpose = self._node("Transpose", [rows], turned, perm=[1, 0])
                self._insertions.add(self._owners[id(layer)], None, [transpose])
                walk.redirect(stored, turned)
                stored.values = np.empty(0, np.int8)
                return rows, scale
        return None

    def _variable(
        self, like: gs.Tensor, suffix: str, dtype: DTypeLike, shape: Sequence[int | str] | None
    ) -> gs.Variable:
        return gs.Variable(self._names.derive(like.name, suffix), dtype, shape)

    def _node(self, op: str, inputs: list[gs.Tensor], output: gs.Tensor, **attrs: object) -> gs.Node:
        return gs.Node(op, self._names.derive(output.name, op), attrs, inputs, [output])


def _is_of_layer(node: gs.Node) -> bool:
    """Return whether a node dequantizes a constant int8 matrix without blocks."""
    if node.op != "DequantizeLinear" or "block_size" in node.attrs or len(node.inputs) < _INPUTS:
        return False
    stored, _, zero_point = node.inputs
    are_stored = all(isinstance(tensor, gs.Constant) for tensor in node.inputs)
    return are_stored and len(stored.shape) == _MATRIX_RANK and zero_point.dtype == np.int8


def _rounds(layer: gs.Node, table: gs.Constant, *, is_turned: bool) -> bool:
    """Return whether the integers of a layer are those of a rounded table, or their transpose.

    The layer's integers may be bounded so that its sums are exact on every processor (:mod:`ops.pair_sums`).
    """
    stored, scale, zero_point = layer.inputs
    sizes = list(table.shape)[::-1] if is_turned else list(table.shape)
    along = None if scale.values.size == 1 else int(is_turned)
    if list(stored.shape) != sizes or np.any(load(zero_point)):
        return False
    if along is not None and along != int(layer.attrs.get("axis", 1)) % _MATRIX_RANK:
        return False
    steps = scale.values.reshape(()) if along is None else scale.values
    numbers = quantize(
        load(table), steps, np.zeros_like(steps, np.int8), TABLE_FORMAT, None if along is None else 0
    )
    rows = load(stored).T if is_turned else load(stored)
    return any(np.array_equal(candidate, rows) for candidate in (numbers, bound_pairs(numbers, (1,))))
