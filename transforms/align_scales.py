"""Tensors that a scheme wants on one scale, so that a runtime need not rescale between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_graphsurgeon as gs

from transforms import walk
from transforms.quantization_plan import QuantizationPlan


def align_concat(plan: QuantizationPlan) -> int:
    """Give the inputs and the output of each Concat that is quantized one range; return how many changed.

    A Concat whose inputs alone are quantized, before an output of the model, is left alone: there each
    part keeps its own scale. So are Concats in bodies and those of other formats, which have no scale.
    """
    return _align(plan, {"Concat": lambda node: [*node.inputs, *node.outputs]})


def align_slice(plan: QuantizationPlan) -> int:
    """Give the input and the outputs of each Slice and Split that is quantized one range.

    Returns how many changed. A plan whose scheme has ``align_slice`` is made that way.
    """
    return _align(plan, dict.fromkeys(("Slice", "Split"), lambda node: [node.inputs[0], *node.outputs]))


def _align(plan: QuantizationPlan, wanted: Mapping[str, Callable[[gs.Node], list[gs.Tensor]]]) -> int:
    ranged = {id(q.tensor) for q in plan.quantizations if any(step.needs_range for step in q.steps)}
    changed = 0
    for node in walk.nodes(plan.graph):
        if node.op not in wanted:
            continue
        tensors = wanted[node.op](node)
        if all(id(tensor) in ranged for tensor in tensors):
            changed += plan.share(tensors)
    return changed
