"""Dilations of AveragePool that ONNX Runtime stumbles over, left out where they say nothing.

Version 1.31 puts an AveragePool between integers of 8 bits into an operator of its own that has no such
attribute, hands the attribute on, and refuses the model.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.plan.integer_sites import is_dense


def leave_out_dilations(graph: gs.Graph) -> int:
    """Take dilations of 1, which are what it has without, from AveragePool nodes; return from how many."""
    found = [node for node in walk.nodes(graph) if node.op == "AveragePool" and is_dense(node)]
    return sum(node.attrs.pop("dilations", None) is not None for node in found)
