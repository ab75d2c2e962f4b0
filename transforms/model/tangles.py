"""Refuse graphs whose nodes have no execution order."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import onnx

from transforms.graph.proto_graphs import bodies
from transforms.model.model_error import ModelError


def refuse_tangles(graph: onnx.GraphProto) -> None:
    """Raise ModelError if nodes of a graph or a body form a cycle, or two nodes have the same output.

    The error names nodes and tensor.
    """
    for node in graph.node:
        for body in bodies(node):
            refuse_tangles(body)
    _refuse_tangle(graph)


def _refuse_tangle(graph: onnx.GraphProto) -> None:
    makers: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if makers.setdefault(name, i) != i:
                raise ModelError(f"nodes {_label(graph.node[makers[name]])} and {_label(node)} make '{name}'")
    before = {
        i: [makers[name] for name in _reads(node) if name in makers] for i, node in enumerate(graph.node)
    }
    if all(maker < i for i, sources in before.items() for maker in sources):
        return
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        first, second = (_label(graph.node[i]) for i in error.args[1][:2])
        raise ModelError(f"nodes {first} and {second} feed each other: the graph has a cycle") from None


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, except those that its bodies define."""
    names = set(node.input)
    for body in bodies(node):
        defined = {value.name for value in (*body.input, *body.initializer)}
        defined |= {name for inner in body.node for name in inner.output}
        inside = {name for inner in body.node for name in _reads(inner)}
        names |= (inside | {value.name for value in body.output}) - defined
    return names


def _label(node: onnx.NodeProto) -> str:
    return f"'{node.name or ''.join(node.output[:1])}' ({node.op_type})"
