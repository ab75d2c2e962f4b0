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
    order, seen, waiting = list[gs.Node](), set[int](), [total]
    while waiting:
        node = walk.producer(waiting.pop())
        if node is not None and node.op == "Add" and node.domain in STANDARD_DOMAINS and id(node) not in seen:
            seen.add(id(node))
            order.append(node)
            waiting += node.inputs
    carrying, more = {id(addend)}, True
    while more:
        joined = [n for n in order if any(id(t) in carrying for t in n.inputs)]
        made = {id(tensor) for node in joined for tensor in node.outputs}
        more, carrying = not made <= carrying, carrying | made
    return {id(n) for n in order if any(id(t) in carrying for t in n.inputs)}
