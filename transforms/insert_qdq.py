"""Rounding written as ExtendedQuantizeLinear and ExtendedDequantizeLinear of our operator library."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs

import ops
from transforms import dtypes, walk
from transforms.insert_rounding import insert_rounding
from transforms.rounding_plan import DEQUANTIZE, QUANTIZE, RoundingPlan
from transforms.selection import Selection


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


def insert_qdq(
    graph: gs.Graph,
    *,
    domain: str = ops.DOMAIN,
    exclude: Selection | None = None,
    keep_io_types: bool = True,
) -> int:
    """Put a quantize and a dequantize node of type bfloat16 on every float32 tensor; return how many got
    them.

    In the same places as :func:`transforms.insert_cast.insert_cast` and with the same numbers as result. The
    model imports version 1 of ``domain``, in which the operators are registered (``ops.DOMAIN`` or
    ``ops.AMD_DOMAIN``).
    """
    pair = QdqPair(graph, domain)
    plan = RoundingPlan(graph, pair.element, exclude=exclude)
    count = insert_rounding(graph, plan, pair, keep_io_types=keep_io_types)
    if count and all(opset.domain != domain for opset in graph.import_domains):
        graph.import_domains = [*graph.import_domains, onnx.helper.make_opsetid(domain, 1)]
    return count
