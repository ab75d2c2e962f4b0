"""Nodes that never compute on a coarse grid, because it would ruin their results.

In integers:

* arithmetic on shapes and positions, and results of integers and booleans alone: positions, masks;
* nodes that add or multiply a mask: a constant so large that it would set the range of all other values;
* the scores of an attention on their way into a Softmax, or the Exp of a decomposed one, from the product
  that computes them;
* sums on their way into a normalization: the residual stream of a transformer.

In integers and blocks: spectra.
"""

from __future__ import annotations

from collections.abc import Set

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import magnitude
from transforms.graph.dot_products import is_dot_product, weight_index
from transforms.graph.masks import MASK
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import onnx_op
from transforms.plan.exact_arithmetic import exact_arithmetic, without_float_input

_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Exp"})
_TO_SOFTMAX = frozenset(
    {"Add", "Sub", "Mul", "Div", "Where", "Clip", "Max", "Min", "Reshape", "Transpose", "Squeeze"}
    | {"Unsqueeze"}
)
_NORMALIZATIONS = frozenset(
    {"LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization"}
    | {"SkipSimplifiedLayerNormalization", "RMSNormalization", "GroupNormalization"}
    | {"InstanceNormalization", "LpNormalization", "GatedRMSNorm", "BranchwiseRMSNorm", "RMSNormRotary"}
)
_KEEPS_RATIOS = (
    MOVES
    | frozenset({"Pad", "Tile", "GatherElements", "GatherND", "Add", "Sub", "Mul", "Div", "Pow", "Sqrt"})
    | {"Abs", "Neg", "Sin", "Cos", "Cast", "Where", "STFT", "DFT", "ReduceSum", "ReduceSumSquare"}
    | {"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin"}
)


def float_zone(graph: gs.Graph, masking: Set[int] | None = None, exact: Set[int] | None = None) -> set[int]:
    """Return the ids of the nodes of the outermost graph that never compute in integers.

    ``masking`` and ``exact``: the results of ``given_masks`` and ``exact_arithmetic``, if already known.
    """
    masking = given_masks(graph) if masking is None else masking
    exact = exact_arithmetic(graph) if exact is None else exact
    scores = [t for node in graph.nodes if node.op in _SOFTMAX for t in node.inputs]
    streams = [t for node in graph.nodes if node.op in _NORMALIZATIONS for t in node.inputs[:1]]
    zone = without_float_input(graph) | exact | masking
    zone |= walk.makers(scores, lambda node: node.op in _TO_SOFTMAX).keys()
    return zone | walk.makers(streams, lambda node: node.op == "Add").keys()


def given_masks(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of the outermost graph that read a mask other than as a bound."""

    def _is_mask(tensor: gs.Tensor) -> bool:
        is_stored = isinstance(tensor, gs.Constant) and dtypes.is_type(tensor, dtypes.FLOAT)
        return is_stored and magnitude(tensor.values) >= MASK

    return {id(node) for node in graph.nodes if node.op != "Clip" and any(map(_is_mask, node.inputs))}


def spectra(graph: gs.Graph) -> set[int]:
    """Return the ids of the outermost graph's nodes between inputs and a logarithm, before learned layers.

    A logarithm depends on the ratios of numbers, and the steps of integers, or of a block, are equal:
    numbers small beside the largest one become 0, and their logarithm the floor. That applies to each tensor
    from the samples of a sound over its spectrum to sums in bands, and to their factors. The nodes are
    moves, sums, squares, magnitudes, dot products with a constant, and bounds above 0. If any other node,
    such as an activation, is on the way from the inputs to a logarithm, no node of that way is included.
    """

    def _is_start(tensor: gs.Tensor) -> bool:
        return walk.is_source(tensor) or not dtypes.is_type(tensor, dtypes.FLOAT)

    logarithms = (node for node in graph.nodes if onnx_op(node) == "Log")
    ways = (walk.way_to(node.inputs, _is_start, _keeps_ratios) for node in logarithms)
    return {found for way in ways if way is not None for found in way}


def _keeps_ratios(node: gs.Node) -> bool:
    if is_dot_product(node):
        return weight_index(node) is not None
    return onnx_op(node) in _KEEPS_RATIOS or _is_floor(node)


def _is_floor(node: gs.Node) -> bool:
    """Return whether a node only raises numbers to a positive minimum; with 0 it would be a Relu."""
    bounds: list[gs.Tensor] = []
    if onnx_op(node) == "Clip" and all(tensor.is_empty() for tensor in node.inputs[2:]):
        bounds = node.inputs[1:2]
    elif onnx_op(node) == "Max":
        bounds = [tensor for tensor in node.inputs if isinstance(tensor, gs.Constant)]
    return len(bounds) == 1 and isinstance(bounds[0], gs.Constant) and bool((bounds[0].values > 0).all())
