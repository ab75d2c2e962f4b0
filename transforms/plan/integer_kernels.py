"""Forms of operators that ONNX Runtime gets wrong between integers of 8 bits, and whose tensors stay float.

A default session of version 1.32 puts a node between a DequantizeLinear and a QuantizeLinear into an operator
on integers of its own. All that this package quantizes was compared with sessions without optimization, in
every form of its attributes: the others differ by two steps at most.

Without pads, :mod:`transforms.runtime_workarounds` takes the attribute away that it stumbles over.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from transforms.graph.dot_products import is_dot_product
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.shapes import shape_of

_SCALES = 2  # input of Resize


def needing_floats(graph: gs.Graph, is_move: Callable[[gs.Node], bool]) -> set[int]:
    """Return the ids of the nodes of the outermost graph that may not read what was an integer.

    A default session would fail on them, or make other numbers. So are the moves in front of them, behind
    which it moves a DequantizeLinear; and in front of a node without a kernel for channels that are last, all
    back to the layers, behind which it moves the Transposes of these.
    """
    wrong, transposed = set[int](), set[int]()
    if not any(_takes_no_last_channels(node) or _is_pooled_wrongly(node) for node in graph.nodes):
        return wrong
    for node in reversed(graph.nodes):
        readers = {id(user) for tensor in node.outputs for user in tensor.outputs}
        if _takes_no_last_channels(node) or (readers & transposed and not is_dot_product(node)):
            transposed.add(id(node))
        elif _is_pooled_wrongly(node) or (readers & wrong and is_move(node)):
            wrong.add(id(node))
    return wrong | transposed


def _is_pooled_wrongly(node: gs.Node) -> bool:
    """Return whether an integer kernel of pools has no dilations, or divides by more than a window holds."""
    if node.op != "AveragePool" or node.domain not in STANDARD_DOMAINS:
        return False
    return not is_dense(node) or (has_pads(node) and counts_pads_of_cut_windows(node))


def _takes_no_last_channels(node: gs.Node) -> bool:
    """Return whether a Resize is cubic and shrinks, or may: with channels last, the runtime refuses it."""
    if node.op != "Resize" or node.domain not in STANDARD_DOMAINS or node.attrs.get("mode") != "cubic":
        return False
    (scales,) = node.inputs[_SCALES : _SCALES + 1] or [None]
    return not (isinstance(scales, gs.Constant) and scales.values.size and (scales.values >= 1).all())


def is_dense(pool: gs.Node) -> bool:
    """Return whether the windows of a pool have no holes."""
    return all(step == 1 for step in pool.attrs.get("dilations", ()))


def has_pads(pool: gs.Node) -> bool:
    """Return whether a pool has pads that it says itself; those of auto_pad SAME are of any size."""
    given = pool.attrs.get("auto_pad", "NOTSET") == "NOTSET"
    return given and any(pool.attrs.get("pads", ()))


def counts_pads_of_cut_windows(pool: gs.Node) -> bool:
    """Return whether a pool counts its pads, and its last windows may reach beyond them."""
    counts = pool.attrs.get("ceil_mode", 0) and pool.attrs.get("count_include_pad", 0)
    given = pool.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return bool(counts) and given and not _fits(pool)


def _fits(pool: gs.Node) -> bool:
    """Return whether the windows of a pool without holes end where its pads do, along each axis."""
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
