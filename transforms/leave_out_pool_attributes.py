"""Attributes of AveragePool that ONNX Runtime stumbles over, left out where they say nothing.

Version 1.32 puts an AveragePool between integers of 8 bits into an operator of its own. That has no
dilations: the runtime hands the attribute on all the same, and refuses the model. Where it counts pads and
rounds the number of windows up, it divides what the last ones sum up by the size of the whole kernel.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.plan.integer_kernels import counts_pads_of_cut_windows, has_pads, is_dense


def leave_out_pool_attributes(graph: gs.Graph) -> int:
    """Take attributes from AveragePool nodes that compute the same without; return from how many.

    Dilations of 1, and the count of pads where there are none but windows may reach beyond the end.
    """
    found = (n for n in walk.nodes(graph) if n.op == "AveragePool" and n.domain in STANDARD_DOMAINS)
    return sum(_strip(node) for node in found)


def _strip(node: gs.Node) -> bool:
    names = ["dilations"] if is_dense(node) and "dilations" in node.attrs else []
    if not has_pads(node) and counts_pads_of_cut_windows(node):
        names.append("count_include_pad")
    for name in names:
        del node.attrs[name]
    return bool(names)
