"""Weights of recurrent operators stored in integers, read through nodes that runtimes fold."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.features.recurrent.operators import is_recurrent
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, NodeSet, resolve
from transforms.insert_qdq import insert_qdq, raise_opset
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import Targets
from transforms.scheme.scheme import FLOAT32, Scheme


def quantize_recurrent(
    graph: gs.Graph,
    dtype: str = "int8",
    *,
    block_size: int = 0,
    target: str = "",
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Store W and R of each LSTM, GRU and RNN in integers; return how many weights.

    In bodies, too. Each row of each gate and direction has a scale, or each block of a row. Layers compute in
    float: ONNX Runtime folds the Cast and the Mul that read the integers, and a step takes the same time.
    For a ``target`` that is a compiler a DequantizeLinear reads them. Biases, peepholes and states stay
    float. Does nothing to weights that are computed, and to those of ``exclude``.
    :func:`transforms.write_dynamic_lstm.write_dynamic_lstm` comes after it. A plan stores them, too, in the
    format that its scheme has for weights.

    Raises ValueError for an unknown ``dtype``.
    """
    scheme = Scheme(activation=FLOAT32, weight=dtype, block_size=block_size, target=target)
    kept = resolve(exclude, graph, nodes)
    others = NodeSet(node for node in walk.nodes(graph) if not is_recurrent(node) or node in kept)
    raise_opset(graph, scheme)
    return insert_qdq(QuantizationPlan(graph, scheme, Targets(others, (), {})))
