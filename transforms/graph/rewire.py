"""Replace nodes, and remove unused nodes and constants."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.graph import walk

STANDARD_DOMAINS = (None, "", "ai.onnx")
"""Domains of standard ONNX operators."""

RUNTIME_DOMAIN = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def onnx_op(node: gs.Node) -> str:
    """Return the operator of a node if it is a standard one, else an empty string."""
    return str(node.op) if node.domain in STANDARD_DOMAINS else ""


def position(graph: gs.Graph, node: gs.Node) -> int:
    """Return the index of the node in the graph (by identity: graph-surgeon compares nodes by value)."""
    return next(i for i, other in enumerate(graph.nodes) if other is node)


class Insertions:
    """New nodes to insert into a graph and its bodies: after a node, or at the front of a graph."""

    def __init__(self) -> None:
        """Start empty."""
        self._nodes: dict[int, list[gs.Node]] = {}

    def add(self, owner: gs.Graph, producer: gs.Node | None, nodes: Sequence[gs.Node]) -> None:
        """Insert nodes after a producer, at the front of its graph if None; in the order of the calls."""
        self._nodes.setdefault(id(owner if producer is None else producer), []).extend(nodes)

    def place(self, graph: gs.Graph, new: Callable[[gs.Node], gs.Node] = lambda node: node) -> None:
        """Insert all nodes; ``new`` returns the node that has replaced another meanwhile."""
        for inner in list(walk.graphs(graph)):
            placed = self._nodes.get(id(inner), [])
            for node in inner.nodes:
                placed += [new(node), *self._nodes.get(id(node), ())]
            inner.nodes = placed


class Replacements:
    """New nodes for old ones of one graph: disconnected at once, moved in the graph by :meth:`place`."""

    def __init__(self, graph: gs.Graph) -> None:
        """Start empty."""
        self._graph = graph
        self._places = {id(node): place for place, node in enumerate(graph.nodes)}
        self._news: dict[int, list[gs.Node]] = {}
        self._gone: list[gs.Node] = []
        self._shared: list[list[gs.Node]] = []

    def replace(self, olds: Sequence[gs.Node], news: Sequence[gs.Node]) -> None:
        """Put ``news`` where the first of ``olds`` stands; outputs of ``olds`` must be unused by then.

        The new nodes may already have taken over outputs of the old ones. Old nodes, and producers in the
        same graph that become unused, are removed.
        """
        first = min(self._places[id(node)] for node in olds)
        self._news.setdefault(first, []).extend(news)
        self._places.update((id(node), first) for node in news)
        self.remove_unused(olds)

    def remove_unused(self, nodes: Sequence[gs.Node]) -> None:
        """Remove the nodes whose outputs are unused, then the producers of their inputs in turn."""
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if id(node) in self._places and not _is_used(self._graph, node):
                del self._places[id(node)]
                pending += [producer for tensor in node.inputs for producer in tensor.inputs]
                self._detach(node)

    def place(self) -> None:
        """Apply all replacements to the list of nodes."""
        self.forget()
        nodes = (node for i, old in enumerate(self._graph.nodes) for node in (*self._news.get(i, ()), old))
        self._graph.nodes = [node for node in nodes if id(node) in self._places]

    def forget(self) -> None:
        """Disconnect old nodes from constants, which :meth:`place` does once for all nodes that share one."""
        _strike(self._shared, self._gone)
        self._shared, self._gone = [], []

    def _detach(self, node: gs.Node) -> None:
        """Disconnect a node, except from constants, whose long user lists are scanned once for all nodes."""
        self._gone.append(node)
        self._shared += [tensor.outputs for tensor in node.inputs if isinstance(tensor, gs.Constant)]
        node_inputs = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant)]
        list.__setitem__(node.inputs, slice(None), node_inputs)
        detach(node)


def remove_unused(graph: gs.Graph, nodes: Sequence[gs.Node]) -> None:
    """Remove nodes as :meth:`Replacements.remove_unused` does, at once."""
    rest = Replacements(graph)
    rest.remove_unused(nodes)
    rest.place()


def detach(*nodes: gs.Node) -> None:
    """Disconnect exactly these nodes from their inputs and outputs, in one pass for all.

    Graph-surgeon's own clear() removes the first node that *equals* one, and two unnamed nodes with the same
    computation are equal; it also scans all users of a tensor for each node.
    """
    _strike([tensor.outputs for node in nodes for tensor in node.inputs], nodes)
    _strike([tensor.inputs for node in nodes for tensor in node.outputs], nodes)
    for node in nodes:
        list.clear(node.inputs)
        list.clear(node.outputs)


def drop(graph: gs.Graph, nodes: Sequence[gs.Node]) -> None:
    """Disconnect nodes as :func:`detach` does, and remove them from their graph's list."""
    detach(*nodes)
    gone = {id(node) for node in nodes}
    if gone:
        graph.nodes = [node for node in graph.nodes if id(node) not in gone]


def import_domains(graph: gs.Graph, domains: set[str]) -> None:
    """Let a model import version 1 of the domains that it does not import yet."""
    present = {opset.domain for opset in graph.import_domains}
    new = [onnx.helper.make_opsetid(domain, 1) for domain in sorted(domains - present - {""})]
    if new:
        graph.import_domains = [*graph.import_domains, *new]


def forget_domains(graph: gs.Graph, domains: set[str]) -> None:
    """Remove the imports of those domains that no node of a model, including bodies, uses."""
    gone = domains - {node.domain for node in walk.nodes(graph)}
    graph.import_domains = [opset for opset in graph.import_domains or () if opset.domain not in gone]


def bypass(graph: gs.Graph, nodes: Sequence[gs.Node], outputs: set[int]) -> int:
    """Remove nodes of a graph that pass on their first input; return how many could be removed.

    ``outputs`` (:func:`walk.outputs`) keep their names: the producer of the node's input outputs them
    instead. A node stays if no node of the same graph produces its input, and between two outputs.
    """
    inside, gone = {id(node) for node in graph.nodes}, []
    for node in nodes:
        source, result = node.inputs[0], node.outputs[0]
        maker = walk.producer(source)
        if id(result) not in outputs:
            walk.redirect(result, source)
        elif maker is None or id(maker) not in inside or id(source) in outputs:
            continue
        else:
            detach(node)
            walk.replace_output(maker, source, result)
            walk.redirect(source, result)
        gone.append(node)
    drop(graph, gone)
    return len(gone)


def _strike(lists: Sequence[list[gs.Node]], nodes: Sequence[gs.Node]) -> None:
    gone = {id(node) for node in nodes}
    for users in {id(users): users for users in lists}.values():
        list.__setitem__(users, slice(None), [user for user in users if id(user) not in gone])


def release(tensors: Sequence[gs.Tensor], outputs: Container[int]) -> None:
    """Free the arrays of constants that no node uses any more; ``outputs``: :func:`walk.outputs`.

    A tensor and its list of users refer to each other, so that a large weight would otherwise stay in memory
    until Python collects the cycle.
    """
    for tensor in tensors:
        if isinstance(tensor, gs.Constant) and not tensor.outputs and id(tensor) not in outputs:
            tensor.values = np.empty(0)


def take_over(node: gs.Node, output: gs.Tensor) -> gs.Node:
    """Make ``output`` an output of ``node`` instead of its present producer; return that producer."""
    (old,) = output.inputs
    at = next(i for i, tensor in enumerate(old.outputs) if tensor is output)
    old.outputs[at] = gs.Variable.empty()
    node.outputs.append(output)
    return old


def _is_used(graph: gs.Graph, node: gs.Node) -> bool:
    return any(
        not tensor.is_empty() and (tensor.outputs or walk.is_output(tensor, graph)) for tensor in node.outputs
    )
