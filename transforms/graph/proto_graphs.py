"""The graphs of a stored model, including those in node attributes, and their contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def bodies_in(attribute: onnx.AttributeProto) -> tuple[onnx.GraphProto, ...]:
    """Return the graphs that an attribute holds."""
    if attribute.type == onnx.AttributeProto.INT:  # the most frequent type, and access to the fields is slow
        return ()
    return (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in the attributes of a node."""
    return [body for attribute in node.attribute for body in bodies_in(attribute)]


def each_graph(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph, and the bodies of its nodes with all that lie in them."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from each_graph(body)


def nodes_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of their bodies, which are visited after the node itself was handled."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from nodes_in(body.node)


def each_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of its bodies."""
    for inner in each_graph(graph):
        yield from inner.node


def read_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that nodes read, and graphs return, in a graph and its bodies."""
    used = {name for node in each_node(graph) for name in node.input}
    return used | {value.name for inner in each_graph(graph) for value in inner.output}


def sizes_of(kind: onnx.TypeProto.Tensor) -> list[int | None] | None:
    """Return the sizes of a tensor, None for each that is not a number; None without a shape."""
    if not kind.HasField("shape"):
        return None
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]


def fixed_sizes(kind: onnx.TypeProto.Tensor) -> list[int] | None:
    """Return the sizes of a tensor; None unless all are known."""
    sizes = sizes_of(kind)
    fixed = [size for size in sizes or () if size is not None and size >= 0]
    return None if sizes is None or len(fixed) < len(sizes) else fixed
