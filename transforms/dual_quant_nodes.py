"""Two quantizations on a tensor at the border of two formats, for compilers that want to see both.

Which format a node computes in can not be told from the graph, so this is a rewrite of the plan
(:mod:`transforms.quantization_plan`), before :func:`transforms.insert_qdq.insert_qdq` writes it down.
"""

from __future__ import annotations

from transforms.quantization_plan import QuantizationPlan
from transforms.quantizer import ACTIVATION, Quantization, Quantizer


def dual_quant_nodes(plan: QuantizationPlan) -> int:
    """Put the producer's quantization before the consumer's on each tensor where the two differ in format.

    A bfloat16 layer before a BFP one: quantize, dequantize, BFP; a BFP layer before a bfloat16 one: BFP,
    quantize, dequantize. A tensor with readers of several formats branches behind the producer's. The
    producer of a layer's result is that layer, also through a Relu, a Clip, an added bias, or operators that
    move numbers. An input of the model counts as made, an output as read, in the format of the whole
    scheme.

    Does nothing where either side computes in float32, and to constants. Returns how many tensors got a
    second quantization.
    """
    changed = {id(q.tensor) for q in plan.quantizations if q.role == ACTIVATION and _double(plan, q)}
    return len(changed)


def _double(plan: QuantizationPlan, quantization: Quantization) -> bool:
    if len(quantization.steps) > 1:
        return False
    step, tensor = quantization.steps[0], quantization.tensor
    steps: list[Quantizer | None] = [plan.made(tensor), step]
    if quantization.is_output:
        steps = [step, plan.default(tensor)]
    if None in steps or steps[0].format.name == steps[1].format.name:  # type: ignore[union-attr]
        return False
    quantization.steps = tuple(step for step in steps if step is not None)
    return True
