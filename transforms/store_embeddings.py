"""Embeddings stored in 8 or 4 bits: one table for lookups of rows and for the head that multiplies by it.

com.microsoft's GatherBlockQuantized, version 1, reads rows of a table of unsigned integers [N, K * bits / 8]
with a scale for each block of a row; MatMulNBits multiplies by the same bytes, as [N, K / block, block * bits
/ 8]. In both, the middle, 2^(bits - 1), represents 0.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops import FORMATS
from ops.array_types import Float32Array
from ops.integer_blocks import block_parameters, pack_numbers, quantize_blocks
from transforms.features.language.found_nodes import Decoder
from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.embeddings import heads, is_lookup, tables
from transforms.graph.qdq import GATHER_BLOCKS
from transforms.graph.rewire import (
    RUNTIME_DOMAIN,
    Insertions,
    Replacements,
    import_domains,
    onnx_op,
    take_over,
)
from transforms.graph.selection import Choice, Exclusion, NodeSet, resolve
from transforms.write_matmul_nbits import is_plain, matmul_nbits, short, stored_scales

log = logging.getLogger(__name__)

_BLOCKS = {8: (128, 64, 32, 16), 4: (32, 16)}
"""Block sizes by bits, preferred ones first: the size has to divide the length of a row."""

_ROWS = 1 << 12  # compared or quantized at a time


def store_embeddings(
    graph: gs.Graph,
    dtype: str = "int8",
    *,
    accuracy_level: int | None = None,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Store each embedding of a model in int8 or int4; return how many tables.

    An embedding is a constant matrix whose rows a Gather reads: the largest of the model, and those that a
    MatMul or Gemm multiplies by, transposed. ``accuracy_level``: of the MatMulNBits of these products, as in
    :func:`transforms.write_matmul_nbits.write_matmul_nbits`. Does nothing for a table that other nodes or
    nodes in ``exclude`` read, that is an output of a graph, or with a row length that 16 does not divide; and
    for a model that has such an operator already.

    Raises ValueError for another ``dtype``.
    """
    if dtype not in ("int8", "int4"):
        raise ValueError(f"embeddings cannot be stored in '{dtype}', legal are int8, int4")
    bits, names, changed = int(FORMATS[dtype].bits), walk.Names(graph), 0
    if any(node.op == GATHER_BLOCKS for node in walk.nodes(graph)):
        return 0
    outputs, excluded = walk.outputs(graph), resolve(exclude, graph, nodes)
    for table in tables(graph):
        reason = why_not_stored(table, _block(table, bits), outputs, excluded)
        if reason:
            log.debug("embedding '%s' stays: %s", table.name, reason)
            continue
        _store(graph, table, dtype, names, accuracy_level)
        changed += 1
    if changed:
        import_domains(graph, {RUNTIME_DOMAIN})
    return changed


def tie_embeddings(graph: gs.Graph) -> int:
    """Let products whose weight equals a transposed embedding multiply by the embedding; return how many.

    So an exact copy of the table as a weight of a MatMul or Gemm need not be stored.
    """
    names, changed, table_by_id = walk.Names(graph), 0, tables(graph)
    for owner in walk.graphs(graph):
        turned: dict[int, gs.Variable] = {}
        insertions = Insertions()
        for node in owner.nodes:
            table = _source(node, table_by_id)
            if table is None:
                continue
            changed += 1
            if _turns(node):
                node.inputs[1] = table
                continue
            if id(table) not in turned:
                output = gs.Variable(names.derive(table.name, "turned"), np.float32, table.shape[::-1])
                transpose = gs.Node("Transpose", names.derive(table.name, "Transpose"), {"perm": [1, 0]})
                transpose.inputs, transpose.outputs = [table], [output]
                insertions.add(owner, None, [transpose])
                turned[id(table)] = output
            node.inputs[1] = turned[id(table)]
        insertions.place(owner)
    return changed


def _source(node: gs.Node, tables: list[gs.Constant]) -> gs.Constant | None:
    """Return the table of whose transpose a product has a copy as its weight, or None."""
    weight = node.inputs[1] if onnx_op(node) in ("MatMul", "Gemm") else None
    if not isinstance(weight, gs.Constant) or not dtypes.is_type(weight, dtypes.FLOAT):
        return None
    shape = list(weight.shape) if _turns(node) else list(weight.shape)[::-1]
    for table in tables:
        if table is weight or list(table.shape) != shape:
            continue
        rows = load(weight) if _turns(node) else load(weight).T
        if _is_same(load(table), rows):
            return table
    return None


def _turns(node: gs.Node) -> bool:
    return bool(node.attrs.get("transB", 0))


def _is_same(table: NDArray[np.generic], rows: NDArray[np.generic]) -> bool:
    """Return whether two matrices are equal, comparing some rows at a time."""
    slices = [slice(first, first + _ROWS) for first in range(0, len(table), _ROWS)]
    return all(np.array_equal(table[part], rows[part]) for part in slices)


def why_not_stored(table: gs.Constant, block: int | None, outputs: set[int], kept: NodeSet) -> str:
    """Return the reason why a table cannot be stored in blocks of a size, empty if it can."""
    if id(table) in outputs:
        return "it is an output"
    if block is None:
        return f"its rows of {table.shape[1]} numbers have no blocks of 16"
    for node in table.outputs:
        products = heads(node, table)
        if left := [user for user in (node, *products) if user in kept]:
            return f"'{left[0].name}' is excluded"
        if is_lookup(node, table):
            continue
        if not products:
            return f"'{node.name}', a {node.op}, reads it"
        if node.op == "Transpose" and any(id(tensor) in outputs for tensor in node.outputs):
            return f"what '{node.name}' makes of it is an output"
        if wrong := [head for head in products if not is_plain(head)]:
            return f"'{wrong[0].name}' may multiply a vector, or has factors"
    return ""


def _block(table: gs.Constant, bits: int) -> int | None:
    return next((size for size in _BLOCKS[bits] if table.shape[1] % size == 0), None)


def _store(graph: gs.Graph, table: gs.Constant, dtype: str, names: walk.Names, level: int | None) -> None:
    bits, block = int(FORMATS[dtype].bits), _block(table, int(FORMATS[dtype].bits))
    assert block is not None
    packed, scale = _quantized(load(table), dtype, block)
    data = gs.Constant(names.derive(table.name, dtype), packed)
    share_table(graph, table, StoredTable(data, scale, bits, block), names, level)


@dataclass(frozen=True)
class StoredTable:
    """Packed integers [N, K * bits / 8] of a table, and for each block, [N, K / block], its parameters.

    ``zeros``: integer zero points, the middle if None. ``minimum``: added to the rows of lookups, whose zero
    points are 0 then; ``float_zeros``: the equivalent zero points for products. ``rounding``: the type to
    which looked up numbers are finally rounded.
    """

    data: gs.Constant
    scale: Float32Array
    bits: int
    block: int
    zeros: NDArray[np.uint8] | None = None
    minimum: Float32Array | None = None
    float_zeros: Float32Array | None = None
    rounding: str = "float32"


def share_table(
    graph: gs.Graph, table: gs.Constant, stored: StoredTable, names: walk.Names, level: int | None
) -> None:
    """Let all consumers of a table, lookups and products by its transpose, read its integers."""
    bits, block, (rows, inputs) = stored.bits, stored.block, map(int, table.shape)
    scales, shared = stored_scales(stored.scale, table.name, names)
    shape = gs.Constant(names.derive(table.name, "blocks"), np.array([rows, inputs // block, -1], np.int64))
    in_blocks = gs.Variable(names.derive(table.name, "in_blocks"), np.uint8)
    reshape = gs.Node("Reshape", names.derive(table.name, "Reshape"), {}, [stored.data, shape], [in_blocks])
    users = list(table.outputs)
    lookups = [node for node in users if is_lookup(node, table)]
    products = [head for node in users if not is_lookup(node, table) for head in heads(node, table)]
    shared += [reshape] if products else []
    zeros, of_products = _zero_points(stored, table.name, names)
    looked_up = _Lookup(table, stored, [scales, *zeros[0]], names)
    shared += zeros[1]
    news = {id(node): looked_up.at(node) for node in lookups}
    numbers = {"K": inputs, "N": rows, "bits": bits, "block_size": block}
    operands = [in_blocks, scales, *of_products]
    news |= {id(head): [matmul_nbits(head, operands, numbers, level)] for head in products}
    for owner in walk.graphs(graph):
        replacements = Replacements(owner)
        for node in [node for node in owner.nodes if id(node) in news]:
            new = news[id(node)]
            take_over(new[-1], node.outputs[0])
            replacements.replace([node], new)
        replacements.place()
    insertions = Insertions()
    insertions.add(graph, None, shared)
    insertions.place(graph)


def _zero_points(
    stored: StoredTable, name: str, names: walk.Names
) -> tuple[tuple[list[gs.Tensor], list[gs.Node]], list[gs.Tensor]]:
    """Return the zero points of lookups and the nodes that compute them, and the zero points of products.

    Products have none if the zero point is the middle. Lookups always have them: without one, the CUDA
    provider takes 0 (onnxruntime issue 31692), and the CPU provider the middle.
    """
    if stored.zeros is not None and stored.minimum is None:
        packed = gs.Constant(names.derive(name, "zero_points"), pack_numbers(stored.zeros, stored.bits))
        return ([packed], []), [packed]
    zero = 0 if stored.minimum is not None else 1 << (stored.bits - 1)
    products: list[gs.Tensor] = []
    if stored.minimum is not None and stored.float_zeros is not None:
        products.append(gs.Constant(names.derive(name, "zero_points"), stored.float_zeros))
    return _filled(stored, zero, name, names), products


def _filled(
    stored: StoredTable, zero: int, name: str, names: walk.Names
) -> tuple[list[gs.Tensor], list[gs.Node]]:
    """Return equal zero points for all blocks of a table, and the ConstantOfShape that creates them."""
    rows, blocks = stored.scale.shape
    packed = np.array([rows, -(-blocks * stored.bits // 8)], np.int64)
    zeros = gs.Variable(names.derive(name, "zeros"), np.uint8)
    value = gs.Constant("", pack_numbers(np.full((1, 8 // stored.bits), zero, np.uint8), stored.bits)[0])
    shape = gs.Constant(names.derive(name, "shape"), packed)
    label = names.derive(name, "ConstantOfShape")
    return [zeros], [gs.Node("ConstantOfShape", label, {"value": value}, [shape], [zeros])]


class _Lookup:
    """Nodes that read rows of a stored table."""

    def __init__(
        self, table: gs.Constant, stored: StoredTable, parameters: list[gs.Tensor], names: walk.Names
    ) -> None:
        self._table, self._stored, self._parameters, self._names = table, stored, parameters, names
        self._least: list[gs.Constant] = []
        if stored.minimum is not None:
            of_each = np.arange(table.shape[1], dtype=np.int64) // stored.block
            named = {"minimum": short(stored.minimum), "block": of_each}
            self._least = [
                gs.Constant(names.derive(table.name, name), array) for name, array in named.items()
            ]

    def at(self, node: gs.Node) -> list[gs.Node]:
        """Return the nodes that replace a lookup, the last one without an output."""
        stored, decoder = self._stored, Decoder(self._table, self._names)
        attrs = {"bits": stored.bits, "block_size": stored.block, "gather_axis": 0, "quantize_axis": 1}
        scale, *zeros = self._parameters
        rows = decoder.add(GATHER_BLOCKS, [stored.data, node.inputs[1], scale, *zeros], **attrs)
        decoder.nodes[0].domain, decoder.nodes[0].name = RUNTIME_DOMAIN, node.name
        if self._least:
            minimum, block = self._least
            kind = dtypes.FLOAT if minimum.dtype == np.float32 else dtypes.FLOAT16
            least = decoder.add("Gather", [minimum, node.inputs[1]], kind, axis=0)
            if kind == dtypes.FLOAT16:
                least = decoder.add("Cast", [least], to=dtypes.FLOAT)
            rows = decoder.add("Add", [rows, decoder.add("Gather", [least, block], axis=-1)])
        decoder.rounded(rows, stored.rounding)
        list.clear(decoder.nodes[-1].outputs)
        return decoder.nodes


def _quantized(table: NDArray[np.floating], dtype: str, block: int) -> tuple[NDArray[np.uint8], Float32Array]:
    """Return packed integers [N, K * bits / 8] and scales [N, K / block], computed some rows at a time."""
    fmt, packed, scales = FORMATS[dtype], [], []
    for first in range(0, len(table), _ROWS):
        part = np.asarray(table[first : first + _ROWS], np.float32)
        parameters = block_parameters(part, fmt, 1, block, symmetric=True, method="MSE")
        q = quantize_blocks(part, parameters, fmt, 1, block).astype(np.int16) - int(fmt.lowest)
        packed.append(pack_numbers(q.astype(np.uint8), int(fmt.bits)))
        scales.append(parameters[0])
    return np.concatenate(packed), np.concatenate(scales)
