"""Nodes that make what a logarithm is taken of, out of inputs of the model and before any layer is learned.

A logarithm tells numbers apart by their ratios, and the steps of integers, or of a block, are equal: what is
small beside the largest number becomes 0, and its logarithm the floor. That holds for each tensor from the
samples of a sound over the parts of its spectrum to their sums in bands, and for what multiplies them.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product, weight_index
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_MAGNITUDES = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Abs", "Neg", "Sin", "Cos", "Cast", "Where", "STFT", "DFT"}
    | {"ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin"}
)
_MOVES = MOVES | {"Pad", "Tile", "GatherElements", "GatherND"}


def spectra(graph: gs.Graph) -> set[int]:
    """Return the ids of these nodes of the outermost graph, dot products among them.

    They are moves, sums, squares and magnitudes, dot products with a constant, and bounds above 0. If
    anything else is on the way from the inputs to a logarithm, as an activation is, none of that way is among
    them.
    """
    logarithms = (node for node in graph.nodes if node.op == "Log" and node.domain in STANDARD_DOMAINS)
    ways = (walk.way_to(node.inputs, _is_start, _keeps_ratios) for node in logarithms)
    return {found for way in ways if way is not None for found in way}


def _is_start(tensor: gs.Tensor) -> bool:
    return walk.is_source(tensor) or not dtypes.is_type(tensor, dtypes.FLOAT)


def _keeps_ratios(node: gs.Node) -> bool:
    if node.domain not in STANDARD_DOMAINS:
        return False
    if is_dot_product(node):
        return weight_index(node) is not None
    return node.op in _MAGNITUDES or node.op in _MOVES or _is_floor(node)


def _is_floor(node: gs.Node) -> bool:
    """Return whether a node only keeps numbers above a positive one: at 0 it would be a Relu."""
    if node.op == "Clip":
        bounds = node.inputs[1:2]
        if any(not tensor.is_empty() for tensor in node.inputs[2:]):
            return False
    elif node.op == "Max":
        bounds = [tensor for tensor in node.inputs if isinstance(tensor, gs.Constant)]
    else:
        return False
    return len(bounds) == 1 and isinstance(bounds[0], gs.Constant) and bool((bounds[0].values > 0).all())
