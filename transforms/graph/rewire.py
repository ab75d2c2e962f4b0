"""Replacing nodes by new ones, and removing nodes and constants without a use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk

STANDARD_DOMAINS = (None, "", "ai.onnx")
"""Domains of ONNX's own operators."""


def position(graph: gs.Graph, node: gs.Node) -> int:
    """Return the index of the node in the graph (by identity: graph-surgeon compares nodes by value)."""
    return next(i for i, other in enumerate(graph.nodes) if other is node)


class Insertions:
    """New nodes on their way into a graph and its bodies: after a node, or at the front of a graph."""

    def __init__(self) -> None:
        """Start without any."""
        self._nodes: dict[int, list[gs.Node]] = {}

    def add(self, owner: gs.Graph, producer: gs.Node | None, nodes: Sequence[gs.Node]) -> None:
        """Insert nodes after a producer, at the front of its graph if None; later ones go after earlier."""
        self._nodes.setdefault(id(owner if producer is None else producer), []).extend(nodes)

    def place(self, graph: gs.Graph, new: Callable[[gs.Node], gs.Node] = lambda node: node) -> None:
        """Put all nodes in their places; ``new`` returns what stands in the place of a node from now on."""
        for inner in list(walk.graphs(graph)):
            placed = self._nodes.get(id(inner), [])
            for node in inner.nodes:
                placed += [new(node), *self._nodes.get(id(node), ())]
            inner.nodes = placed


def replace(graph: gs.Graph, olds: Sequence[gs.Node], news: Sequence[gs.Node]) -> None:
    """Put ``news`` where the first of ``olds`` stands; ``olds`` must have no output left that is used.

    The new nodes may already have taken over outputs of the old ones. Old nodes, and producers in the same
    graph that become unused, are removed.
    """
    first = min(position(graph, node) for node in olds)
    graph.nodes[first:first] = list(news)
    remove_unused(graph, olds)


def remove_unused(graph: gs.Graph, nodes: Sequence[gs.Node]) -> None:
    """Remove those of the nodes whose outputs are unused, then in turn the producers of their inputs."""
    members = {id(node) for node in graph.nodes}
    pending, removed = list(nodes), set()
    while pending:
        node = pending.pop()
        if id(node) not in members or id(node) in removed or _is_used(graph, node):
            continue
        removed.add(id(node))
        producers = [producer for tensor in node.inputs for producer in tensor.inputs]
        detach(node)
        pending += producers
    graph.nodes = [node for node in graph.nodes if id(node) not in removed]


def detach(node: gs.Node) -> None:
    """Disconnect this node, and no other, from its inputs and outputs.

    Graph-surgeon's own clear() removes the first node that *equals* this one, and two nodes without a name
    that compute the same are equal.
    """
    for tensors, users in ((node.inputs, "outputs"), (node.outputs, "inputs")):
        for tensor in tensors:
            nodes = getattr(tensor, users)
            list.pop(nodes, next(i for i, other in enumerate(nodes) if other is node))
        list.clear(tensors)


def release(model: gs.Graph, tensors: Sequence[gs.Tensor]) -> None:
    """Free the arrays of those constants that no node of the whole model uses any more.

    A tensor and its list of users refer to each other, so that a large weight would otherwise stay in memory
    until Python collects the cycle.
    """
    outputs = {id(tensor) for graph in walk.graphs(model) for tensor in graph.outputs}
    for tensor in tensors:
        if isinstance(tensor, gs.Constant) and not tensor.outputs and id(tensor) not in outputs:
            tensor.values = np.empty(0)


def take_over(node: gs.Node, output: gs.Tensor) -> gs.Node:
    """Make ``output`` an output of ``node`` in place of the node that produces it now; return that node."""
    (old,) = output.inputs
    at = next(i for i, tensor in enumerate(old.outputs) if tensor is output)
    old.outputs[at] = gs.Variable.empty()
    node.outputs.append(output)
    return old


def _is_used(graph: gs.Graph, node: gs.Node) -> bool:
    return any(
        not tensor.is_empty() and (tensor.outputs or walk.is_output(tensor, graph)) for tensor in node.outputs
    )
