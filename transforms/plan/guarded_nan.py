"""NaN that a model looks for: the mean of no tokens, a row of padding, replaced before an output sees it.

No integer is NaN. A tensor that is quantized between a NaN and what looks for it hides it, and a number that
means nothing takes its place.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS

_GUARDS = frozenset({"IsNaN", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
"""Operators whose answer for NaN is not that for the number in its place."""


def guarded_nan(graph: gs.Graph, names: Collection[str]) -> list[str]:
    """Return those of some tensors of the outermost graph from which a way leads to such an operator.

    ``names``: of tensors that hold NaN.
    """
    if not names:
        return []
    leads: set[int] = set()
    for node in reversed(graph.nodes):
        reads = {id(tensor) for tensor in walk.reads(node)}
        is_guard = any(
            inner.op in _GUARDS and inner.domain in STANDARD_DOMAINS for inner in _with_bodies(node)
        )
        if is_guard or any(id(tensor) in leads for tensor in node.outputs):
            leads |= reads
    known = walk.tensors(graph)
    return [name for name in dict.fromkeys(names) if id(known[name]) in leads]


def _with_bodies(node: gs.Node) -> list[gs.Node]:
    return [node, *(inner for body in walk.bodies(node) for inner in walk.nodes(body))]
