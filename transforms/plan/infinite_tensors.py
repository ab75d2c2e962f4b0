"""Tensors that may hold infinities: masks, and sums with masks on their way to a Softmax.

A block shares one exponent, and an infinity leaves it none: all of its numbers become NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.slots import Spread

_SUMS = frozenset({"Add", "Sub", "Sum", "Mean", "CumSum", "Mul", "Div", "Pow", "Neg", "Abs"})
_CHOICES = frozenset({"Where", "Min", "Max", "Clip", "Relu", "LeakyRelu", "PRelu", "TopK"})
_FUNCTIONS = frozenset({"Exp", "Log", "LogSoftmax", "Softplus", "Sqrt", "Floor", "Ceil", "Round"})
_REDUCTIONS = frozenset(
    {"ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp", "MaxPool", "GlobalMaxPool"}
    | {"ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceProd"}
)
_PLACED = frozenset(
    {"Cast", "CastLike", "Trilu", "Tile", "Pad", "ScatterND", "ScatterElements", "GatherND", "GatherElements"}
    | {"Compress", "ReverseSequence", "DepthToSpace", "SpaceToDepth"}
    | {"SequenceConstruct", "SequenceInsert", "SequenceAt", "ConcatFromSequence", "SplitToSequence"}
)
_CARRIERS = MOVES | _SUMS | _CHOICES | _FUNCTIONS | _REDUCTIONS | _PLACED
ADDED = 2
"""The input of a Gemm that is added to the product."""


def infinite_tensors(graph: gs.Graph) -> set[int]:
    """Return the ids of the tensors of a graph and its bodies to which stored infinities are carried.

    That goes by moves, sums, products of single numbers, functions that are infinite where these are, and
    choices, through control flow, and ends at all other operators.
    """
    sources = [*filter(is_infinite, walk.constants(graph)), *filled_with_infinity(graph)]
    return {*Spread(graph, carries).onwards(sources)} if sources else set()


def carries(node: gs.Node, index: int) -> bool:
    """Return whether what a node makes may be infinite if what it reads as an input is."""
    if node.domain not in STANDARD_DOMAINS or dtypes.is_discrete(node.inputs[index]):
        return False
    return node.op in _CARRIERS or (node.op == "Gemm" and index == ADDED)


def filled_with_infinity(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield what nodes fill with a stored infinity."""
    for node in walk.nodes(graph):
        if node.op == "ConstantOfShape" and node.domain in STANDARD_DOMAINS:
            value = node.attrs.get("value")
            if value is not None and is_infinite(value):
                yield node.outputs[0]


def is_infinite(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is a constant that holds an infinity."""
    if not isinstance(tensor, gs.Constant) or dtypes.is_discrete(tensor):
        return False
    values = np.asarray(tensor.values)
    return values.dtype.kind == "f" and has_infinity(values)


def has_infinity(values: np.ndarray) -> bool:
    """Return whether an array of floats holds an infinity, beside NaN or not."""
    if not values.size:
        return False
    low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)  # which ignore NaN
    return bool(np.isinf(low) or np.isinf(high))
