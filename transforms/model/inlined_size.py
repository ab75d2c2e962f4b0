"""The size of a model after inlining its local functions, computed without inlining them.

A function that calls another ten times, which calls another ten times, is exponential in the size of its
file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

import onnx

from transforms.graph.proto_graphs import bodies_in
from transforms.model.local_functions import Key, called, key_of, nodes_in, shown
from transforms.model.read_model import ModelError

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
    """What nodes come to: nodes, bytes that calls add, bodies in bodies, calls in a row, and how often each
    attribute of the function around them is referred to."""

    nodes: int = 0
    bytes: int = 0
    levels: int = 0
    calls: int = 0
    references: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Size, *, times: int = 1, deeper: int = 0) -> None:
        """Count what is inside of these nodes, several times where an attribute is copied."""
        self.nodes += times * other.nodes
        self.bytes += times * other.bytes
        self.levels = max(self.levels, other.levels + deeper)
        self.calls = max(self.calls, other.calls)


def refuse_explosion(model: onnx.ModelProto) -> None:
    """Raise ModelError for functions that call themselves, or that inlining would make too large."""
    if not model.functions:
        return
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
    calls = {
        key: {called(node) for node in _inner_nodes(function)} & functions.keys()
        for key, function in functions.items()
    }
    try:
        return list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        raise ModelError(f"function '{error.args[1][0][1]}' calls itself") from None


def _inner_nodes(function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a function, and those of graphs that are defaults of its attributes."""
    yield from nodes_in(function.node)
    for attribute in function.attribute_proto:
        for body in bodies_in(attribute):
            yield from nodes_in(body.node)


def _measure(
    nodes: Iterable[onnx.NodeProto], functions: dict[Key, onnx.FunctionProto], sizes: dict[Key, _Size]
) -> _Size:
    total = _Size()
    for node in nodes:
        key = called(node)
        defaults = functions[key].attribute_proto if key in sizes else ()
        inside = {a.name: _inside(a, functions, sizes) for a in (*defaults, *node.attribute)}
        if key not in sizes:
            total.nodes += 1
            for size in inside.values():
                total.add(size)
                total.references += size.references
        else:
            _add_call(total, node, functions[key], sizes[key], inside)
    return total


def _inside(
    attribute: onnx.AttributeProto, functions: dict[Key, onnx.FunctionProto], sizes: dict[Key, _Size]
) -> _Size:
    """Return the size of an attribute's bodies, and which attribute of the function it refers to."""
    size = _Size()
    if attribute.ref_attr_name:
        size.references[attribute.ref_attr_name] += 1
    for body in bodies_in(attribute):
        inner = _measure(body.node, functions, sizes)
        size.add(inner, deeper=1)
        size.references += inner.references
    return size


def _add_call(
    total: _Size, node: onnx.NodeProto, function: onnx.FunctionProto, body: _Size, inside: dict[str, _Size]
) -> None:
    """Add the body of a function, and its attributes as often as the body refers to them."""
    total.add(body)
    total.bytes += function.ByteSize()
    total.calls = max(total.calls, body.calls + 1)
    given = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
    for name, attribute in given.items():
        times, size = body.references[name], inside[name]
        total.bytes += times * attribute.ByteSize()
        total.add(size, times=times, deeper=body.levels)
        for outer, count in size.references.items():
            total.references[outer] += times * count
