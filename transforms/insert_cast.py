"""Rounding written as a pair of Casts: standard ONNX, which any runtime carries out."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes
from transforms.graph.selection import Exclusion
from transforms.plan.rounding_plan import RoundingPlan
from transforms.plan.write_roundings import insert_rounding

_ELEMENTS = {"bfloat16": (dtypes.BFLOAT16, "bf16"), "float16": (dtypes.FLOAT16, "fp16")}


class CastPair:
    """``Cast(to=element)`` and ``Cast(to=FLOAT)``; rounds half to even, NaN stays NaN."""

    def __init__(self, dtype: str) -> None:
        """Raise ValueError for a type that no pair can be made of."""
        if dtype not in _ELEMENTS:
            raise ValueError(f"dtype '{dtype}' can not be cast to; legal are {', '.join(_ELEMENTS)}")
        self.element, self.suffix = _ELEMENTS[dtype]

    def narrow(self, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the Cast to the element type."""
        return gs.Node("Cast", name, attrs={"to": self.element}, inputs=[source], outputs=[target])

    def widen(self, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the Cast back to float32."""
        return gs.Node("Cast", name, attrs={"to": dtypes.FLOAT}, inputs=[source], outputs=[target])


def insert_cast(
    graph: gs.Graph,
    dtype: str = "bfloat16",
    *,
    exclude: Exclusion = None,
    keep_io_types: bool = True,
    commuting: bool = True,
) -> int:
    """Put a pair of Casts, to ``dtype`` and back, on every float32 tensor; return how many tensors got one.

    Covers tensors between two nodes, inputs and outputs of the model, weights, and the same inside the
    bodies of If, Loop and Scan; one pair serves all uses of a tensor. The cases in which a tensor is left
    alone are those of :mod:`transforms.plan.rounding_plan`; with ``commuting`` false also the tensor before a
    Relu gets a pair. A graph that has its pairs is left as it is. ``dtype`` is "bfloat16" or "float16"
    (ValueError otherwise).
    """
    pair = CastPair(dtype)
    plan = RoundingPlan(graph, pair.element, exclude=exclude, commuting=commuting)
    return insert_rounding(graph, plan, pair, keep_io_types=keep_io_types)
