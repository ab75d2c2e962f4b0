"""Two quantizations on a tensor at the border of two formats, for compilers that need both.

The format in which a node computes is not in the graph, so this is a rewrite of the plan
(:mod:`transforms.plan.quantization_plan`), before :func:`transforms.insert_qdq.insert_qdq` writes it.
"""

from __future__ import annotations

from dataclasses import replace

from transforms.plan.quant_spec import QuantSite, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan, check_plan


def dual_quant_nodes(plan: QuantizationPlan) -> int:
    """Put the producer's quantization before the consumer's on each tensor if the two differ in format.

    A bfloat16 layer before a BFP one: quantize, dequantize, BFP; a BFP layer before a bfloat16 one: BFP,
    quantize, dequantize. A tensor with consumers of several formats branches after the producer's. A layer
    counts as the producer of its result also through a Relu, a Clip, an added bias, or operators that move
    numbers. An input of the model counts as produced, and an output as read, in the default format of the
    scheme.

    Does nothing if either side computes in float32, and to constants. Returns how many tensors got a
    second quantization. Raises TypeError for a graph, which has no formats yet.
    """
    check_plan(plan, "dual_quant_nodes")
    plan.replace_each(lambda quantization: _by_border(plan, quantization))
    changed = [_double(plan, quantization) for quantization in plan.quantizations]
    return len({id(q.tensor) for q, doubled in zip(plan.quantizations, changed, strict=True) if doubled})


def _by_border(plan: QuantizationPlan, quantization: QuantSite) -> list[QuantSite]:
    """Return a quantization, or two if the model's output has another format than the consumers."""
    both = quantization.is_output and bool(quantization.uses)
    if not both or _steps(plan, quantization) is None:
        return [quantization]
    return [replace(quantization, uses=[]), replace(quantization, is_output=False)]


def _double(plan: QuantizationPlan, quantization: QuantSite) -> bool:
    steps = _steps(plan, quantization)
    quantization.steps = steps or quantization.steps
    return steps is not None


def _steps(plan: QuantizationPlan, quantization: QuantSite) -> tuple[QuantSpec, QuantSpec] | None:
    """Return the grids of both sides of a border, or None if there is none."""
    if len(quantization.steps) > 1:
        return None
    step, tensor = quantization.steps[0], quantization.tensor
    leaves = quantization.is_output
    before, after = (step, plan.specs.default(tensor)) if leaves else (plan.specs.made(tensor), step)
    if before is None or after is None or before.format.name == after.format.name:
        return None
    return before, after
