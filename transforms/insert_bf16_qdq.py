"""Rounding to bfloat16 written as nodes of our operators that quantize and dequantize."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

import ops
from transforms.graph import dtypes, walk
from transforms.graph.selection import Exclusion
from transforms.plan.rounding_plan import DEQUANTIZE, QUANTIZE, RoundingPlan
from transforms.plan.write_roundings import import_domains, insert_rounding


class QdqPair:
    """A quantize and a dequantize node of type bfloat16, with scale 1 and zero point 0."""

    element, suffix = dtypes.BFLOAT16, "bf16"

    def __init__(self, graph: gs.Graph, domain: str) -> None:
        """Make the scale and zero point that all pairs of the graph share."""
        names = walk.Names(graph)
        self._domain = domain
        self._scale = gs.Constant(names.derive("", "bf16_scale"), np.array(1, np.float32))
        self._zero_point = gs.Constant(names.derive("", "bf16_zero_point"), np.array(0, ml_dtypes.bfloat16))

    def narrow(self, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the quantize node."""
        return self._node(QUANTIZE, name, source, target)

    def widen(self, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        """Return the dequantize node."""
        return self._node(DEQUANTIZE, name, source, target)

    def _node(self, op: str, name: str, source: gs.Tensor, target: gs.Tensor) -> gs.Node:
        inputs = [source, self._scale, self._zero_point]
        return gs.Node(op, name, inputs=inputs, outputs=[target], domain=self._domain)


def insert_bf16_qdq(
    graph: gs.Graph,
    *,
    domain: str = ops.DOMAIN,
    exclude: Exclusion = None,
    keep_io_types: bool = True,
) -> int:
    """Put a quantize and a dequantize node on every float32 tensor; return how many tensors got a pair.

    The tensors are those of :func:`transforms.insert_cast.insert_cast`, and so are the numbers that result.
    The model imports version 1 of ``domain``, in which the operators are registered (``ops.DOMAIN`` or
    ``ops.AMD_DOMAIN``). With ``keep_io_types`` false inputs and outputs of the model become bfloat16.
    """
    pair = QdqPair(graph, domain)
    plan = RoundingPlan(graph, pair.element, exclude=exclude)
    count = insert_rounding(graph, plan, pair, keep_io_types=keep_io_types)
    if count:
        import_domains(graph, {domain})
    return count
