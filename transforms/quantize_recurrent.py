"""Weights of recurrent operators stored as integers, decoded by nodes that runtimes fold."""

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

    Also in bodies. Each row of each gate and direction has a scale, or each block of a row. Layers compute in
    float: ONNX Runtime folds the Cast and the Mul that decode the integers, so a step takes the same time.
    For a ``target`` that is a compiler, a DequantizeLinear decodes them. Biases, peepholes and states stay
    float. Does nothing to computed weights, and to those of ``exclude``.
    :func:`transforms.write_dynamic_lstm.write_dynamic_lstm` can follow. A plan also stores these weights, in
    the weight format of its scheme.

    Raises ValueError for an unknown ``dtype``.
    """
    scheme = Scheme(activation=FLOAT32, weight=dtype, block_size=block_size, target=target)
    excluded = resolve(exclude, graph, nodes)
    left_out = NodeSet(node for node in walk.nodes(graph) if not is_recurrent(node) or node in excluded)
    raise_opset(graph, scheme)
    return insert_qdq(QuantizationPlan(graph, scheme, Targets(left_out, (), {})))
