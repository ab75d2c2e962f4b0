"""Limits on the values of a tensor for any inputs, from the operator that computes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from transforms import features
from transforms.graph import walk
from transforms.graph.constants import Constants, load
from transforms.graph.rewire import STANDARD_DOMAINS, onnx_op

Limits = tuple[float, float]

NONE: Limits = (-math.inf, math.inf)

LEVEL = frozenset({"Sigmoid", "HardSigmoid", "Tanh", "Softsign"})
"""Element-wise functions that are constant, or nearly, beyond some number."""

_LIMITS: Mapping[str, Limits] = MappingProxyType(
    {
        **dict.fromkeys(("Sigmoid", "HardSigmoid", "Softmax", "Hardmax"), (0.0, 1.0)),
        **dict.fromkeys(("Tanh", "Erf", "Sin", "Cos", "Softsign"), (-1.0, 1.0)),
        **dict.fromkeys(("Relu", "Softplus", "Exp", "Sqrt", "Abs", "ReduceL2"), (0.0, math.inf)),
        "LogSoftmax": (-math.inf, 0.0),
        **{"Gelu": (-0.1701, math.inf), "Mish": (-0.3089, math.inf), "HardSwish": (-0.3751, math.inf)},
    }
)
_SWISH: Limits = (-0.2785, math.inf)  # of x sigmoid(x)
_KEPT = frozenset(
    (
        *("Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"),
        *("Slice", "Split", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth"),
        *("MaxPool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMax", "ReduceMin", "ReduceMean"),
    )
)
"""Operators whose outputs are numbers of their first input, or means of them."""


def limits_of(tensor: gs.Tensor, known_limits: dict[int, Limits] | None = None) -> Limits:
    """Return the least and the greatest value that a tensor can have; infinite where unknown.

    ``known_limits``: limits by tensor id, which are extended by this one; calls for many tensors in the
    order of their nodes need not go back through all of them each time.
    """
    known_limits = {} if known_limits is None else known_limits
    waiting, seen = [tensor], set[int]()
    limits: list[Limits] = []
    while waiting and (not limits or limits[-1] != NONE):
        source = waiting.pop()
        if id(source) in seen:
            continue
        seen.add(id(source))
        node = walk.producer(source)
        if id(source) in known_limits:
            limits.append(known_limits[id(source)])
        elif node is None or node.domain not in STANDARD_DOMAINS:
            limits.append(NONE)
        elif node.op in _KEPT:
            waiting.append(node.inputs[0])
        elif node.op == "Concat":
            waiting += node.inputs
        else:
            limits.append(_made_by(node, source))
    known_limits[id(tensor)] = min(low for low, _ in limits), max(high for _, high in limits)
    return known_limits[id(tensor)]


def rectifier_limits(node: gs.Node, constants: Constants) -> Limits | None:
    """Return the limits of a Relu or Clip; None for another node and for limits that are not constant."""
    if onnx_op(node) not in ("Relu", "Clip"):
        return None
    if node.op == "Relu":
        return 0.0, math.inf
    low, high = (_limit(node, *end, constants) for end in ((1, "min", -math.inf), (2, "max", math.inf)))
    return None if low is None or high is None else (low, high)


def _limit(node: gs.Node, index: int, name: str, default: float, constants: Constants) -> float | None:
    """Return a limit of a Clip: an input since opset 11, before that an attribute."""
    if len(node.inputs) > index and not node.inputs[index].is_empty():
        return constants.scalar(node.inputs[index])
    return float(node.attrs.get(name, default))


def _made_by(node: gs.Node, tensor: gs.Tensor) -> Limits:
    if node.op == "Clip":
        return _bound(node, 1, -math.inf), _bound(node, 2, math.inf)
    feature = features.of(node)
    if feature is not None:
        return feature.limits(node, tensor) or NONE
    return _SWISH if _is_swish(node) else _LIMITS.get(node.op, NONE)


def _is_swish(node: gs.Node) -> bool:
    """Return whether a node multiplies a tensor by its own Sigmoid."""
    if node.op != "Mul":
        return False
    for tensor, other in (node.inputs, node.inputs[::-1]):
        gate = walk.producer(other)
        if gate is not None and onnx_op(gate) == "Sigmoid" and gate.inputs[0] is tensor:
            return True
    return False


def _bound(node: gs.Node, index: int, default: float) -> float:
    if index >= len(node.inputs) or node.inputs[index].is_empty():
        return default
    bound = node.inputs[index]
    return float(np.asarray(load(bound)).reshape(())) if isinstance(bound, gs.Constant) else default
