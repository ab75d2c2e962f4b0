"""Rounding to bfloat16 written as nodes of our operators that quantize and dequantize."""

from __future__ import annotations

import onnx_graphsurgeon as gs

import ops
from transforms.graph import dtypes, walk
from transforms.graph.qdq import EXTENDED
from transforms.graph.rewire import import_domains
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.plan.qdq_writer import neutral_inputs
from transforms.plan.rounding_plan import RoundingPair, RoundingPlan, insert_rounding


def insert_bf16_qdq(
    graph: gs.Graph,
    *,
    domain: str = ops.DOMAIN,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    keep_io_types: bool = True,
) -> int:
    """Put a quantize and a dequantize node on every float32 tensor; return how many tensors got a pair.

    The tensors are those of :func:`transforms.insert_cast.insert_cast`, and so are the numbers that result.
    The model imports version 1 of ``domain``, in which the operators are registered (``ops.DOMAIN`` or
    ``ops.AMD_DOMAIN``). With ``keep_io_types`` false inputs and outputs of the model become bfloat16.
    """
    inputs = neutral_inputs(walk.Names(graph), "bf16", "bfloat16")
    pair = RoundingPair(dtypes.BFLOAT16, "bf16", EXTENDED, inputs=inputs, domain=domain)
    plan = RoundingPlan(graph, pair.element, exclude=resolve(exclude, graph, nodes))
    count = insert_rounding(graph, plan, pair, keep_io_types=keep_io_types)
    if count:
        import_domains(graph, {domain})
    return count
