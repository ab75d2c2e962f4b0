"""The size of a model after inlining its local functions, by arithmetic.

A function that calls another ten times, which calls another ten times, is exponential in the size of its
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import onnx

from transforms.graph.proto_graphs import bodies_in
from transforms.model.local_functions import Key, called, key_of, nodes_in, shown
from transforms.model.model_error import ModelError

MOST_NODES = 1 << 15
"""Nodes that inlining may add: more than the largest models have, and half a minute of work."""

MOST_BYTES = 1 << 28
"""Bytes that inlining may add: a function may hold weights, and every call gets a copy."""

MOST_LEVELS = 30
"""Bodies in bodies: each takes three levels of protobuf, which reads 100."""

MOST_CALLS = 100
"""Functions that call each other in a row, as many as onnx inlines."""


@dataclass
class _Size:
    """What nodes come to: nodes, bytes that calls add, bodies in bodies, calls in a row, and how often they
    refer to attributes of the function around them."""

    nodes: int = 0
    bytes: int = 0
    levels: int = 0
    calls: int = 0
    references: int = 0

    def add(self, other: _Size, times: int = 1, deeper: int = 0) -> None:
        """Count what is inside of these nodes, several times where it is copied."""
        self.nodes += times * other.nodes
        self.bytes += times * other.bytes
        self.references += times * other.references
        self.levels = max(self.levels, other.levels + deeper)
        self.calls = max(self.calls, other.calls)


def refuse_explosion(model: onnx.ModelProto) -> None:
    """Raise ModelError for functions that call themselves, or that inlining would make too large."""
    functions = {key_of(function): function for function in model.functions}
    sizes: dict[Key, _Size] = {}
    for key in _callees_first(functions):
        sizes[key] = _measure(functions[key].node, functions, sizes)
        _refuse(sizes[key], f"function '{shown(key)}'")
    _refuse(_measure(model.graph.node, functions, sizes), "the graph")


def _refuse(size: _Size, what: str) -> None:
    for count, limit, unit in (
        (size.nodes, MOST_NODES, "nodes"),
        (size.bytes, MOST_BYTES, "bytes"),
        (size.levels, MOST_LEVELS, "levels of bodies"),
        (size.calls, MOST_CALLS, "functions that call each other"),
    ):
        if count > limit and size.calls:
            raise ModelError(
                f"{what} comes to {count:,} {unit} when functions are inlined, at most {limit:,}"
            )


def _callees_first(functions: dict[Key, onnx.FunctionProto]) -> Iterable[Key]:
    calls = {key: set(_calls(function)) & functions.keys() for key, function in functions.items()}
    try:
        return list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        raise ModelError(f"function '{error.args[1][0][1]}' calls itself") from None


def _calls(function: onnx.FunctionProto) -> Iterator[Key]:
    yield from map(called, nodes_in(function.node))
    for attribute in function.attribute_proto:  # a default may be a graph
        for body in bodies_in(attribute):
            yield from map(called, nodes_in(body.node))


def _measure(
    nodes: Iterable[onnx.NodeProto], functions: dict[Key, onnx.FunctionProto], sizes: dict[Key, _Size]
) -> _Size:
    """Return the size of nodes; a call counts its attributes each time that the function refers to any."""
    total = _Size()
    for node in nodes:
        function, body = functions.get(called(node)), sizes.get(called(node), _Size(nodes=1, references=1))
        attributes = [*node.attribute, *(function.attribute_proto if function else ())]
        total.add(_Size(body.nodes, body.bytes, body.levels, body.calls))
        if function:
            total.bytes += function.ByteSize()
            total.bytes += body.references * sum(attribute.ByteSize() for attribute in attributes)
            total.calls = max(total.calls, body.calls + 1)
        for attribute in attributes:
            total.references += body.references * bool(attribute.ref_attr_name)
            for inner in bodies_in(attribute):
                deeper = body.levels + 1 if function else 1
                total.add(_measure(inner.node, functions, sizes), body.references, deeper)
    return total
