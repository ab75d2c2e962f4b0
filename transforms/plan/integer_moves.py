"""Operators that move integers unchanged, and forms that ONNX Runtime gets wrong between integers.

A default session of version 1.32 replaces a node between a DequantizeLinear and a QuantizeLinear of 8 bits
by an integer operator. All operators that this package quantizes were compared with sessions without
optimization, in every form of their attributes: the others differ by two steps at most.

Without pads, :mod:`transforms.runtime_workarounds` removes the attribute that causes the error.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product, is_operand
from transforms.graph.rewire import onnx_op
from transforms.graph.shapes import shape_of

MOVES = frozenset(
    {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "GlobalMaxPool", "Gather"}
    | {"GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Identity", "Pad"}
    | {"Slice", "Split"}
)
"""Operators whose output has only numbers of the first input."""

_SCALES = 2  # input of Resize


def is_move(node: gs.Node) -> bool:
    """Return whether a node moves the numbers of its first input."""
    return onnx_op(node) in MOVES


def keeps_grid(node: gs.Node) -> bool:
    """Return whether a Pad pads with zero, which every scale represents; true of all other moves."""
    if node.op != "Pad" or node.attrs.get("mode", "constant") != "constant":
        return True
    value = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    return value is None or (isinstance(value, gs.Constant) and not value.values.any())


def is_operand_moved(tensor: gs.Tensor) -> bool:
    """Return whether a dot product reads a tensor, directly or through moves."""
    uses = walk.uses_beyond(tensor, lambda node, index: is_move(node) and index == 0)
    return any(is_dot_product(node) and is_operand(node, index) for node, index in uses)


def needing_floats(graph: gs.Graph) -> set[int]:
    """Return the ids of the outermost graph's nodes that may not read dequantized integers.

    A default session would fail on them, or compute other numbers. They include the moves before them,
    across which it moves a DequantizeLinear; and before a node without a kernel for channels-last data,
    everything back to the layers, after which it moves their Transposes.
    """
    wrong, transposed = set[int](), set[int]()
    if not any(_takes_no_last_channels(node) or _is_pooled_wrongly(node) for node in graph.nodes):
        return wrong
    for node in reversed(graph.nodes):
        consumers = {id(user) for tensor in node.outputs for user in tensor.outputs}
        if _takes_no_last_channels(node) or (consumers & transposed and not is_dot_product(node)):
            transposed.add(id(node))
        elif _is_pooled_wrongly(node) or (consumers & wrong and is_move(node)):
            wrong.add(id(node))
    return wrong | transposed


def _is_pooled_wrongly(node: gs.Node) -> bool:
    """Return whether the integer kernel of a pool lacks its dilations, or divides by too large a count."""
    if onnx_op(node) != "AveragePool":
        return False
    return not is_dense(node) or (has_pads(node) and counts_pads_of_cut_windows(node))


def _takes_no_last_channels(node: gs.Node) -> bool:
    """Return whether a Resize is cubic and may shrink: with channels last, the runtime refuses it."""
    if onnx_op(node) != "Resize" or node.attrs.get("mode") != "cubic":
        return False
    (scales,) = node.inputs[_SCALES : _SCALES + 1] or [None]
    return not (isinstance(scales, gs.Constant) and scales.values.size and (scales.values >= 1).all())


def is_dense(pool: gs.Node) -> bool:
    """Return whether the windows of a pool have no dilations."""
    return all(step == 1 for step in pool.attrs.get("dilations", ()))


def has_pads(pool: gs.Node) -> bool:
    """Return whether a pool has explicit pads; with auto_pad SAME pads may have any size."""
    is_explicit = pool.attrs.get("auto_pad", "NOTSET") == "NOTSET"
    return is_explicit and any(pool.attrs.get("pads", ()))


def counts_pads_of_cut_windows(pool: gs.Node) -> bool:
    """Return whether a pool counts its pads, and its last windows may extend beyond them."""
    counts = pool.attrs.get("ceil_mode", 0) and pool.attrs.get("count_include_pad", 0)
    is_explicit = pool.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return bool(counts) and is_explicit and not _fits(pool)


def _fits(pool: gs.Node) -> bool:
    """Return whether the windows of a pool without dilations end where its pads do, along each axis."""
    kernel: list[int] = pool.attrs["kernel_shape"]
    strides = pool.attrs.get("strides") or [1] * len(kernel)
    if all(stride == 1 for stride in strides):
        return True
    pads = pool.attrs["pads"] if has_pads(pool) else [0] * 2 * len(kernel)
    sizes = (shape_of(pool.inputs[0]) or ())[2:]
    if len(sizes) != len(kernel):
        return False
    padded = zip(sizes, pads, pads[len(kernel) :], kernel, strides, strict=False)
    return all(isinstance(n, int) and (n + a + b - k) % s == 0 for n, a, b, k, s in padded)
