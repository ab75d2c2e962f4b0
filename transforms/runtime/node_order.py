"""The order in which a session runs nodes: what is made of weights alone is made when it is read first."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def make_late(graph: onnx.GraphProto) -> bool:
    """Move nodes that depend on no input in front of the first node that reads what they make, in place.

    Nodes that round or widen weights, all of them at the beginning, would bring all weights into memory
    together. Returns whether a node was moved.
    """
    nodes = list(graph.node)
    fed = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    fixed: list[bool] = []
    for node in nodes:
        fixed.append(fed.isdisjoint(_reads(node)))
        if not fixed[-1]:
            fed.update(node.output)
    if not any(fixed):
        return False
    first: dict[str, int] = {}  # the place of the first reader, by the tensor's name
    places = [len(nodes)] * len(nodes)
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        found = (first.get(name, len(nodes)) for name in node.output)
        places[number] = min(found, default=number) if fixed[number] else number
        for name in _reads(node):
            first[name] = min(places[number], first.get(name, len(nodes)))
    order = sorted(range(len(nodes)), key=lambda number: (places[number], not fixed[number], number))
    if order == list(range(len(nodes))):
        return False
    del graph.node[:]
    graph.node.extend(nodes[number] for number in order)
    return True


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, also in its bodies, of tensors made there, too."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                yield from _reads(inner)
            yield from (value.name for value in body.output)
