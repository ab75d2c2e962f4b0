"""Rounding written as a pair of Casts: standard ONNX, which any runtime supports."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ops.legal_names import refuse_unknown
from transforms.graph import dtypes
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.plan.rounding_plan import RoundingPair, RoundingPlan, insert_rounding

_ELEMENTS = {"bfloat16": (dtypes.BFLOAT16, "bf16"), "float16": (dtypes.FLOAT16, "fp16")}


def cast_pair(dtype: str) -> RoundingPair:
    """Return ``Cast(to=element)`` and ``Cast(to=FLOAT)``, which round half to even and keep NaN.

    Raises ValueError for other types than bfloat16 and float16.
    """
    refuse_unknown(dtype, _ELEMENTS, "dtype")
    element, suffix = _ELEMENTS[dtype]
    return RoundingPair(element, suffix, ("Cast", "Cast"), ({"to": element}, {"to": dtypes.FLOAT}))


def insert_cast(
    graph: gs.Graph,
    dtype: str = "bfloat16",
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    keep_io_types: bool = True,
    round_before_relu: bool = False,
) -> int:
    """Put a pair of Casts, to ``dtype`` and back, on every float32 tensor; return how many tensors got one.

    Covers tensors between two nodes, inputs and outputs of the model, weights, and the same inside the
    bodies of If, Loop and Scan; one pair serves all uses of a tensor. The cases in which a tensor is left
    alone are those of :mod:`transforms.plan.rounding_plan`; with ``round_before_relu`` also the tensor before
    a Relu gets a pair. A graph that already has its pairs is not changed. ``dtype`` is "bfloat16" or
    "float16" (ValueError otherwise).
    """
    pair = cast_pair(dtype)
    excluded = resolve(exclude, graph, nodes)
    plan = RoundingPlan(graph, pair.element, exclude=excluded, round_before_relu=round_before_relu)
    return insert_rounding(graph, plan, pair, keep_io_types=keep_io_types)
