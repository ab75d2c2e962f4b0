"""Nodes that make no number that was not there before them, which integers pass as they are."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product, is_operand
from transforms.graph.rewire import STANDARD_DOMAINS

MOVES = frozenset(
    {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MaxPool", "GlobalMaxPool", "Gather"}
    | {"GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Identity", "Pad"}
    | {"Slice", "Split"}
)
"""Operators that make no number that was not there: the first input is what they move."""


def is_move(node: gs.Node) -> bool:
    """Return whether a node moves the numbers of its first input."""
    return node.op in MOVES and node.domain in STANDARD_DOMAINS


def keeps_grid(node: gs.Node) -> bool:
    """Return whether a Pad pads with zero, which every scale has; true of all other moves."""
    if node.op != "Pad" or node.attrs.get("mode", "constant") != "constant":
        return True
    value = node.inputs[2] if len(node.inputs) > 2 and not node.inputs[2].is_empty() else None
    return value is None or (isinstance(value, gs.Constant) and not value.values.any())


def is_operand_moved(tensor: gs.Tensor) -> bool:
    """Return whether a dot product reads a tensor, moved or not."""
    uses = walk.uses_beyond(tensor, lambda node, index: is_move(node) and index == 0)
    return any(is_dot_product(node) and is_operand(node, index) for node, index in uses)
