"""Sums from which an addend is taken off again: a place in an image, moved by a net, less that place.

What is left is as small as the moves, the rounding of the sum as large as the place: optical flow of some
pixels on a grid of hundreds.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS


def cancelled_sums(graph: gs.Graph) -> set[int]:
    """Return the ids of such Subs of a graph and its bodies, with the Adds from the addend to them."""
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.op == "Sub" and node.domain in STANDARD_DOMAINS:
            sums = _sums_of(node.inputs[0], node.inputs[1])
            found |= sums | ({id(node)} if sums else set())
    return found


def _sums_of(total: gs.Tensor, addend: gs.Tensor) -> set[int]:
    """Return the ids of the Adds by which an addend becomes part of a total; none if it is none."""
    adds, found, waiting = walk.makers([total], _is_sum), set[int](), [addend]
    while waiting and adds:
        for node, _ in walk.uses(waiting.pop()):
            if id(node) in adds and id(node) not in found:
                found.add(id(node))
                waiting += node.outputs
    return found


def _is_sum(node: gs.Node) -> bool:
    return node.op == "Add" and node.domain in STANDARD_DOMAINS
