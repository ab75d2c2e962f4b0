"""Tensors that bodies of If, Loop and Scan read, quantized once more where ONNX Runtime ends the process.

Version 1.32.0 takes integers through nodes that move numbers alone, from a DequantizeLinear to what reads the
result, to quantize it there again. Where a body of that node reads it, and the node has not got it as an
input, the runtime looks for the input after the last one and aborts. A tensor that a DequantizeLinear makes
is left alone.
"""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS, Insertions
from transforms.leave_out_zero_points import MOVED_BEHIND

_DOMAINS = (*STANDARD_DOMAINS, RUNTIME_DOMAIN)
_GRID = 2  # a scale and a zero point


def requantize_captured(graph: gs.Graph) -> int:
    """Put a pair of nodes of the same grid after what moves integers into a body; return how many.

    The model computes the same bits: the numbers are on the grid.
    """
    names, insertions, count = walk.Names(graph), Insertions(), 0
    every = walk.outputs(graph)
    for inner in walk.graphs(graph):
        own = {id(node) for node in inner.nodes}
        ends = every - {id(tensor) for tensor in inner.outputs}
        for node in filter(_moves, inner.nodes):
            made, back = node.outputs[0], _source(node)
            captured = id(made) in ends or any(id(reader) not in own for reader in made.outputs)
            if back is not None and captured:
                insertions.add(inner, node, _pair(node, back, names))
                count += 1
    insertions.place(graph)
    return count


def _moves(node: gs.Node) -> bool:
    return node.op in MOVED_BEHIND and node.domain in STANDARD_DOMAINS


def _source(node: gs.Node) -> gs.Node | None:
    """Return the DequantizeLinear whose numbers a node moves, by itself or after others; None without one."""
    made: gs.Node | None = node
    while made is not None and _moves(made):
        made = walk.producer(made.inputs[0])
    if made is None or made.op != "DequantizeLinear" or made.domain not in _DOMAINS:
        return None
    grid = made.inputs[1:]
    is_stored = all(isinstance(tensor, gs.Constant) and math.prod(tensor.shape) == 1 for tensor in grid)
    return made if is_stored and len(grid) == _GRID else None


def _pair(node: gs.Node, back: gs.Node, names: walk.Names) -> list[gs.Node]:
    """Return two nodes that quantize and dequantize what a node makes, by the grid of another one."""
    made, held, grid = node.outputs[0], back.inputs[0], back.inputs[1:]
    moved = dtypes.variable(names.derive(made.name, "moved"), dtypes.FLOAT, made)
    integers = gs.Variable(names.derive(made.name, "quantized"), held.dtype, made.shape)
    node.outputs[0] = moved
    labels = (names.derive(node.name or made.name, suffix) for suffix in ("quantize", "dequantize"))
    ends = ([moved, *grid], [integers]), ([integers, *grid], [made])
    operators = "QuantizeLinear", "DequantizeLinear"
    return [
        gs.Node(op, label, {}, reads, makes, back.domain)
        for op, label, (reads, makes) in zip(operators, labels, ends, strict=True)
    ]
