"""A common scale for tensors that a Concat joins, so that a runtime need not rescale between them."""

from __future__ import annotations

from transforms.graph import walk
from transforms.plan.quantization_plan import QuantizationPlan, check_plan


def align_concat(plan: QuantizationPlan, *, alike: bool = False) -> int:
    """Give the inputs and the output of each quantized Concat a common range; return how many changed.

    With ``alike`` nothing changes until ranges are known; only tensors that then lose at most half a bit
    share a range.

    A Concat at an output of the model, with only its inputs quantized, is left unchanged: each input keeps
    its own scale. So are Concats in bodies and those of formats without scales. Raises TypeError for a graph,
    which has no formats yet.
    """
    check_plan(plan, "align_concat")
    ranged = {id(q.tensor) for q in plan.quantizations if any(step.needs_range for step in q.steps)}
    changed = 0
    for node in walk.nodes(plan.graph):
        tensors = [*node.inputs, *node.outputs]
        if node.op == "Concat" and all(id(tensor) in ranged for tensor in tensors):
            if alike:
                plan.share_if_alike(node)
            else:
                changed += plan.share(tensors)
    return changed
