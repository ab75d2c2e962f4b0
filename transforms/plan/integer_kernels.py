"""Forms of operators that ONNX Runtime gets wrong between integers of 8 bits, and whose tensors stay float.

A default session of version 1.32 puts a node between a DequantizeLinear and a QuantizeLinear into an operator
on integers of its own. All that this package quantizes was compared with sessions without optimization, in
every form of its attributes: the others differ by two steps at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_graphsurgeon as gs

from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.shapes import shape_of


def needing_floats(graph: gs.Graph, is_move: Callable[[gs.Node], bool]) -> set[int]:
    """Return the ids of the nodes of the outermost graph that may not read what was an integer.

    A default session would fail on them, or make other numbers. So are the moves in front of them, behind
    which it moves a DequantizeLinear.
    """
    found: set[int] = set()
    for node in reversed(graph.nodes):
        leads = is_move(node) and any(id(user) in found for t in node.outputs for user in t.outputs)
        if leads or _is_computed_wrongly(node):
            found.add(id(node))
    return found


def _is_computed_wrongly(node: gs.Node) -> bool:
    rules = FAULTS.get(node.op, ()) if node.domain in STANDARD_DOMAINS else ()
    return any(rule(node) for rule in rules)


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


FAULTS: Mapping[str, tuple[Callable[[gs.Node], bool], ...]] = MappingProxyType(
    {
        "AveragePool": (
            lambda node: not is_dense(node),  # refused: its QLinearAveragePool has no dilations
            # it divides the sums of such windows by the size of the whole kernel
            lambda node: has_pads(node) and counts_pads_of_cut_windows(node),
        ),
    }
)
"""What a default session gets wrong, by operator.

Without pads, :mod:`transforms.leave_out_pool_attributes` takes the attribute away that it stumbles over.
"""
