"""The graphs in a model as it is stored, those in attributes of nodes too, and what lies in all of them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def bodies_in(attribute: onnx.AttributeProto) -> tuple[onnx.GraphProto, ...]:
    """Return the graphs that an attribute holds."""
    if attribute.type == onnx.AttributeProto.INT:  # most are, and looking into one takes its time
        return ()
    return (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)


def each_graph(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph, and the bodies of its nodes with all that lie in them."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in bodies_in(attribute):
                yield from each_graph(body)


def each_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the bodies in it."""
    for inner in each_graph(graph):
        yield from inner.node


def read_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that nodes read, and graphs return, in a graph and the bodies in it."""
    used = {name for node in each_node(graph) for name in node.input}
    return used | {value.name for inner in each_graph(graph) for value in inner.output}
