"""Weights that already lie on a grid, stored as its integers, with unchanged values.

A model converted from a low-bit checkpoint often has float32 weights that are q * d or q * d + m for each
block (:mod:`ops.grids.recognise`). The kernels of com.microsoft's MatMulNBits compute (q - z) * d with an
integer z; a remaining offset of a block is multiplied by the sum of the block's inputs. For 2 and 4 bits z
may also be a float, -m / d, which is exact up to the last bit or two of the largest weight of a block.
DequantizeLinear, with an Add of minima, reproduces all values exactly.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from ops.grids.codes import GridCodes
from ops.grids.recognise import LEAST_BLOCK, FoundGrid
from ops.integer_blocks import block_rows, pack_numbers
from transforms.convert_opset import convert_opset
from transforms.features.language.block_sums import BlockSums
from transforms.features.language.found_nodes import Decoder
from transforms.features.language.gathered_inputs import GatheredInputs, Order
from transforms.graph import dtypes, walk
from transforms.graph.constants import exportable
from transforms.graph.dot_products import is_dot_product, is_operand, sum_axis
from transforms.graph.embeddings import heads, is_lookup, is_table
from transforms.graph.found_grids import EXPERTS, FoundWeight, found_weights, is_stack
from transforms.graph.lazy_values import Weight, constant, derived
from transforms.graph.rewire import RUNTIME_DOMAIN, Insertions, Replacements, import_domains, take_over
from transforms.graph.selection import Choice, Exclusion, NodeSet, resolve
from transforms.store_embeddings import StoredTable, share_table, tie_embeddings, why_not_stored
from transforms.write_matmul_nbits import is_plain, kernel_scales, matmul_nbits

log = logging.getLogger(__name__)

_BLOCK = 256  # of a weight with a scale per channel, which each block repeats
_LEVEL = 1  # inputs stay float32: nothing is lost
_SUM_OPSET = 13  # of ReduceSum with axes as an input
_OPSET = 21  # of DequantizeLinear with blocks, 4 bits and 8-bit floats


def write_found_grids(
    graph: gs.Graph,
    *,
    accuracy_level: int | None = None,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    found: list[FoundWeight] | None = None,
) -> int:
    """Write weights that lie on a grid already as integers or 8-bit floats; return how many.

    Matrices of MatMul and Gemm, with blocks along the sum or a scale per channel, become MatMulNBits, lookups
    GatherBlockQuantized, experts QMoE, and other weights of products get DequantizeLinear. Where inputs that
    share a block are not adjacent (GPTQ with act-order), a Gather puts them in order. All values stay the
    same; in products with a minimum in 2 and 4 bits, to within 1e-6 of the largest of a block.
    ``accuracy_level`` is that of the kernels. The default, 1, keeps inputs float32, except for experts in
    blocks of 8 bits, whose kernels round inputs to int8. ``found`` receives each weight with its grid.

    Does nothing for a weight with a block that lies on no grid, for a weight that a node of ``exclude``
    reads, and for embeddings of 8-bit floats.
    """
    excluded = resolve(exclude, graph, nodes)
    tie_embeddings(graph)
    outputs = walk.outputs(graph)

    def _wanted(tensor: gs.Constant) -> bool:
        return (
            id(tensor) not in outputs and dtypes.is_type(tensor, dtypes.FLOAT) and _is_free(tensor, excluded)
        )

    of_experts: list[FoundWeight] = []
    changed = 0
    if any(node.op == EXPERTS for node in walk.nodes(graph)):
        from transforms.write_qmoe import write_found_experts

        changed = write_found_experts(graph, accuracy_level, excluded, of_experts)
    every = list(found_weights(graph, _wanted))
    if found is not None:
        found += [*of_experts, *every]
    grid_by_name = {
        weight.name: weight.grid for weight in every if weight.grid is not None and weight.is_whole
    }
    by_name = {tensor.name: tensor for tensor in walk.constants(graph)}
    if any(_needs_opset(by_name[name], grid) for name, grid in grid_by_name.items()):
        convert_opset(graph, _OPSET)
        excluded = excluded.resolve_in(graph)
    writer = _Writer(graph, excluded, accuracy_level or _LEVEL)
    tensors = [tensor for tensor in walk.constants(graph) if tensor.name in grid_by_name]
    changed += sum(writer.write(tensor, grid_by_name[tensor.name]) for tensor in tensors)
    writer.place()
    return changed


def _is_free(tensor: gs.Constant, excluded: NodeSet) -> bool:
    return not any(user in excluded for node in tensor.outputs for user in (node, *heads(node, tensor)))


def _needs_opset(tensor: gs.Constant, grid: FoundGrid) -> bool:
    """Return whether a product needs a DequantizeLinear that older opsets do not have."""
    if is_table(tensor):
        return _is_dequantized(grid)
    uses = [use for use in walk.uses(tensor) if _multiplies(*use)]
    return not all(_block_of(node, index, grid) for node, index in uses)


def _is_dequantized(grid: FoundGrid) -> bool:
    """Return whether a grid needs a DequantizeLinear, since no kernel of products supports it."""
    return grid.kind.rounding != "float32" or (grid.kind.has_minimum and grid.kind.bits == 8)


def _multiplies(node: gs.Node, index: int) -> bool:
    return (is_dot_product(node) and is_operand(node, index)) or is_stack(node, index)


def _block_of(node: gs.Node, index: int, grid: FoundGrid) -> int:
    """Return the block size with which MatMulNBits can read a weight, 0 if it cannot."""
    kind = grid.kind
    if index != 1 or node.op not in ("MatMul", "Gemm") or len(node.inputs[1].shape) != 2:
        return 0
    if not is_plain(node) or kind.element or _is_dequantized(grid):
        return 0
    summed = sum_axis(node, 1, 2)
    if not grid.block:
        return _BLOCK if grid.axis != summed else 0
    return grid.block if grid.axis == summed else 0


class _Writer:
    def __init__(self, graph: gs.Graph, excluded: NodeSet, level: int) -> None:
        self._graph, self._excluded, self._level = graph, excluded, level
        self._names, self._outputs = walk.Names(graph), walk.outputs(graph)
        self._owners = walk.constant_owners(graph)
        self._insertions = Insertions()
        self._news: dict[int, gs.Node] = {}
        self._orders: dict[int, Order] = {}
        self._least: dict[int, gs.Constant] = {}

    def place(self) -> None:
        """Insert all new nodes into their graphs."""
        for owner in walk.graphs(self._graph):
            replacements, gathered = Replacements(owner), GatheredInputs(self._names)
            sums = BlockSums(self._names)
            for node in [node for node in owner.nodes if id(node) in self._news]:
                new = self._news[id(node)]
                before = gathered.give(new, self._orders[id(node)]) if id(node) in self._orders else []
                least = self._least.get(id(node))
                after = [] if least is None else sums.add(new, node.outputs[0], least)
                take_over(after[-1] if after else new, node.outputs[0])
                replacements.replace([node], [*before, new, *after])
            replacements.place()
        self._insertions.place(self._graph)
        if self._news:
            import_domains(self._graph, {RUNTIME_DOMAIN})

    def write(self, tensor: gs.Constant, grid: FoundGrid) -> bool:
        """Let all products and lookups that read a weight read it as integers; return whether any does."""
        if is_table(tensor):
            return self._write_table(tensor, grid)
        uses = [(node, index) for node, index in walk.uses(tensor) if _multiplies(node, index)]
        by_kernels = [(node, block) for node, index in uses if (block := _block_of(node, index, grid))]
        by_operators = [(node, index) for node, index in uses if not _block_of(node, index, grid)]
        if by_kernels:
            node, block = by_kernels[0]
            stored, least = self._stored(tensor, GridCodes.of(grid), sum_axis(node, 1, 2), block)
            for node, _ in by_kernels:
                self._news[id(node)] = matmul_nbits(node, *stored, self._level)
                if least is not None:
                    self._least[id(node)] = least
                if grid.order is not None:
                    self._orders[id(node)] = grid.order
        if by_operators:
            dequantized = self._dequantized(tensor, GridCodes.of(grid, 4))
            for node, index in by_operators:
                node.inputs[index] = dequantized
        return bool(uses)

    def _write_table(self, table: gs.Constant, grid: FoundGrid) -> bool:
        """Store an embedding for lookups, and heads that multiply by it; return whether it can be."""
        codes, (_, inputs) = GridCodes.of(grid, 4), table.shape
        block = grid.block or next((size for size in (128, 64, 32, LEAST_BLOCK) if inputs % size == 0), 0)
        along = grid.axis == (1 if grid.block else 0) and block and inputs % block == 0
        reason = why_not_stored(table, block or None, self._outputs, self._excluded)
        if reason or not along or grid.kind.element or grid.order is not None:
            log.debug("embedding '%s' stays: %s", table.name, reason or "no kernel reads its grid")
            return False
        if _is_dequantized(grid):
            self._dequantize_for_heads(table, codes)

        def _packed(values: AnyArray) -> AnyArray:
            return pack_numbers(codes.of_values(values), codes.bits)

        def _of_blocks(parameter: AnyArray) -> AnyArray:
            return np.ascontiguousarray(_per_output(codes, parameter, 1, inputs, block))

        shape = table.shape[0], inputs * codes.bits // 8
        data = self._constant(table, "packed", derived(table._values, _packed, np.uint8, shape))
        stored = StoredTable(data, _of_blocks(codes.step), codes.bits, block, rounding=grid.kind.rounding)
        if grid.minimum is not None:
            zeros = _of_blocks(codes.float_zeros)
            stored = replace(stored, minimum=_of_blocks(grid.minimum), float_zeros=zeros)
        elif not codes.is_signed:
            stored = replace(stored, zeros=_of_blocks(codes.zero.astype(np.uint8)))
        share_table(self._graph, table, stored, self._names, self._level)
        return True

    def _dequantize_for_heads(self, table: gs.Constant, codes: GridCodes) -> None:
        """Let products by the transpose of a table read a dequantized copy: no kernel supports its grid."""
        users = [node for node in table.outputs if not is_lookup(node, table)]
        if users:
            dequantized = self._dequantized(table, codes)
            for node, index in [use for use in walk.uses(table) if use[0] in users]:
                node.inputs[index] = dequantized

    def _stored(
        self, tensor: gs.Constant, codes: GridCodes, summed: int, block: int
    ) -> tuple[tuple[list[gs.Tensor], dict[str, int]], gs.Constant | None]:
        """Return the inputs of MatMulNBits for a weight (integers, steps, zero points) and its attributes.

        Also the offsets of blocks, [B, N], if they are applied by separate products.
        """
        inputs, outputs = int(tensor.shape[summed]), int(tensor.shape[1 - summed])
        blocks = -(-inputs // block)

        def _packed(values: AnyArray) -> AnyArray:
            rows = np.moveaxis(codes.of_values(values), summed, 1)
            if codes.grid.order is not None:
                rows = rows[:, codes.grid.order]
            return pack_numbers(block_rows(rows, 1, block).reshape(outputs, blocks, block), codes.bits)

        shape = outputs, blocks, block * codes.bits // 8
        data = self._constant(tensor, "packed", derived(tensor._values, _packed, np.uint8, shape))
        step = np.ascontiguousarray(_per_output(codes, codes.step, summed, inputs, block))
        scales, casts = kernel_scales(step, tensor.name, self._names, self._level)
        self._insertions.add(self._owners[id(tensor)], None, casts)
        stored: list[gs.Tensor] = [data, scales]
        attrs = {"K": inputs, "N": outputs, "bits": codes.bits, "block_size": block}
        may_part = codes.grid.order is None and inputs % block == 0 and self._graph.opset >= _SUM_OPSET
        if (
            codes.grid.minimum is not None and may_part
        ):  # kernels with float zero points take 25 times as long
            minimum = _per_output(codes, codes.grid.minimum, summed, inputs, block).astype(np.float64)
            least = minimum + step.astype(np.float64) * 2 ** (codes.bits - 1)  # the middle stands for 0
            values = np.ascontiguousarray(least.T.astype(np.float32))
            return (stored, attrs), self._constant(tensor, "least", values)
        if not codes.is_signed:
            is_float = codes.grid.minimum is not None
            zeros = codes.float_zeros if is_float else codes.zero.astype(np.uint8)
            laid = np.ascontiguousarray(_per_output(codes, zeros, summed, inputs, block))
            zero_points = laid if is_float else pack_numbers(laid, codes.bits)
            stored.append(self._constant(tensor, "zero_points", zero_points))
        return (stored, attrs), None

    def _dequantized(self, tensor: gs.Constant, codes: GridCodes) -> gs.Tensor:
        """Return a weight that standard operators dequantize from its integers or 8-bit floats."""
        decoder = Decoder(tensor, self._names)
        dequantized = decoder.dequantized(codes)
        self._insertions.add(self._owners[id(tensor)], None, decoder.nodes)
        return dequantized

    def _constant(self, like: gs.Constant, suffix: str, values: Weight) -> gs.Constant:
        return constant(self._names.derive(like.name, suffix), exportable(values))


def _per_output(codes: GridCodes, parameter: AnyArray, summed: int, inputs: int, block: int) -> AnyArray:
    """Return one number for each block of each output, [N, B]."""
    if codes.grid.block:
        return np.moveaxis(parameter, summed, -1)
    return np.repeat(parameter[:, None], -(-inputs // block), 1)
