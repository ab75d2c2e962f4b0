"""Nodes that never compute in integers, because a coarse grid would ruin what they make.

* arithmetic on shapes and positions, and what is made of integers and booleans alone: positions, masks;
* what adds or multiplies a mask: a constant so large that it would set the range of all other values;
* the scores of an attention on their way into a Softmax, or the Exp of one that is written out, from the
  product that makes them;
* sums on their way into a normalization, the residual stream of a transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import magnitude
from transforms.graph.masks import MASK
from transforms.plan.exact_arithmetic import exact_arithmetic
from transforms.plan.node_groups import without_float_input

_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Exp"})
_SCALINGS = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Where",
        "Clip",
        "Max",
        "Min",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
    }
)
_NORMALIZATIONS = frozenset(
    {
        "LayerNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "RMSNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "LpNormalization",
    }
)
_SUMS = frozenset({"Add"})


def float_zone(graph: gs.Graph, masking: Set[int] | None = None) -> set[int]:
    """Return the ids of the nodes of the outermost graph that never compute in integers.

    ``masking``: what ``given_masks`` has found, if it was asked before.
    """
    masking = given_masks(graph) if masking is None else masking
    zone = exact_arithmetic(graph) | without_float_input(graph) | masking
    zone |= _before(graph, _SOFTMAX, lambda node: node.op in _SCALINGS)
    zone |= _before(graph, _NORMALIZATIONS, lambda node: node.op in _SUMS)
    return zone


def given_masks(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of the outermost graph that read a mask, other than as a bound."""
    return {id(node) for node in graph.nodes if node.op != "Clip" and any(map(_is_mask, node.inputs))}


def _is_mask(tensor: gs.Tensor) -> bool:
    if not isinstance(tensor, gs.Constant) or not dtypes.is_type(tensor, dtypes.FLOAT):
        return False
    return magnitude(tensor.values) >= MASK


def _before(graph: gs.Graph, ends: Iterable[str], passes: Callable[[gs.Node], bool]) -> set[int]:
    """Return the nodes from which only such nodes lead to one of the end operators."""
    found = [node for node in graph.nodes if node.op in ends]
    data = (t for node in found for t in (node.inputs[:1] if node.op in _NORMALIZATIONS else node.inputs))
    return {*walk.makers(data, passes)}
