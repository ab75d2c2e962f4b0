"""NaN that a model looks for: the mean of no tokens, a row of padding, replaced before an output sees it.

No integer is NaN. A tensor that is quantized between a NaN and what looks for it hides it, and a number that
means nothing takes its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.some_names import some_names
from transforms.plan.quant_spec import ACTIVATION
from transforms.plan.quantization_plan import QuantizationPlan

_GUARDS = frozenset({"IsNaN", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
"""Operators whose answer for NaN is not that for the number in its place."""


def guarded_nan(plan: QuantizationPlan, holding: Collection[str]) -> list[str]:
    """Return the names of activations of a plan that hold NaN on the way to such an operator.

    ``holding``: the names of tensors that held NaN on samples.
    """
    sites = (site.tensor for site in plan.quantizations if holding and site.role == ACTIVATION)
    found = {t.name: t for t in sites if any(one.name in holding for one in plan.group(t))}
    leads = _leading(plan.graph) if found else set()
    return [name for name, tensor in found.items() if id(tensor) in leads]


def kept_for_nan(names: Sequence[str]) -> str:
    """Return a note on tensors that stay float because they hold NaN that the model looks for."""
    return f"Kept in float for NaN that the model looks for: {some_names(names)}"


def _leading(graph: gs.Graph) -> set[int]:
    """Return the ids of the tensors of the outermost graph from which a way leads to a guard."""
    leads: set[int] = set()
    for node in reversed(graph.nodes):
        inside = (inner for body in walk.bodies(node) for inner in walk.nodes(body))
        is_guard = any(one.op in _GUARDS and one.domain in STANDARD_DOMAINS for one in (node, *inside))
        if is_guard or any(id(tensor) in leads for tensor in node.outputs):
            leads.update(map(id, walk.reads(node)))
    return leads
