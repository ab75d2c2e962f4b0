"""Local functions of a model: the size after inlining, and defaults that must be written before.

A function that calls another ten times, which calls another ten times, is exponential in the size of its
file: nodes and bytes are counted before. onnx's inliner does not know defaults of attributes: an attribute
missing in a call is lost, and the inner operator takes the default of its own definition. It refuses
functions with an opset that differs from the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import onnx

from transforms.graph.proto_graphs import bodies_in, nodes_in
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.schemas import changes, definition
from transforms.model.model_error import ModelError

MOST_NODES = 1 << 15
"""Nodes that inlining may add: more than the largest models have, and half a minute of work."""

MOST_BYTES = 1 << 28
"""Bytes that inlining may add: a function may contain weights, and every call gets a copy."""

MOST_LEVELS = 30
"""Depth of nested bodies: each takes three levels of protobuf, which reads 100."""

MOST_CALLS = 100
"""Length of a chain of calls, as many as onnx inlines."""

Key = tuple[str, str, str]
"""Domain, name and overload."""


def key_of(function: onnx.FunctionProto) -> Key:
    """Return the key by which calls refer to a function."""
    return _key(function.domain, function.name, function.overload)


def called(node: onnx.NodeProto) -> Key:
    """Return the key of the function that a node calls, if it exists."""
    return _key(node.domain, node.op_type, node.overload)


def shown(key: Key) -> str:
    """Return a key as text for users."""
    return "::".join(filter(None, key))


def _key(domain: str, name: str, overload: str) -> Key:
    return "" if domain == "ai.onnx" else domain, name, overload


def write_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose calls of local functions set every attribute that has a default.

    Returns the model itself if no function has defaults, else a copy. An attribute without a default that a
    call does not set is absent, and so is one that refers to it: an inner call takes its own default there.
    Such a call gets a copy of the function, an overload, in which no node refers to absent attributes.
    Functions must not call themselves.
    """
    if not any(function.attribute_proto for function in model.functions):
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    _Calls(bound).bind()
    return bound


class _Calls:
    """The calls in a model and in the functions they reach, which are bound in turn."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._functions = {key_of(function): function for function in model.functions}
        self._overloads: dict[tuple[Key, frozenset[str]], str] = {}
        self._waiting: list[onnx.FunctionProto] = []

    def bind(self) -> None:
        """Write defaults into all calls, in place."""
        self._bind(self._model.graph.node)
        while self._waiting:
            self._bind(self._waiting.pop().node)

    def _bind(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes_in(nodes):
            key = called(node)
            function = self._functions.get(key)
            if function is not None:
                present = {attribute.name for attribute in node.attribute}
                node.attribute.extend(a for a in function.attribute_proto if a.name not in present)
                node.overload = self._overload(key, frozenset(function.attribute) - present)

    def _overload(self, key: Key, absent: frozenset[str]) -> str:
        """Return the overload to call if some attributes of a function are absent."""
        bound = self._overloads.get((key, absent))
        if bound is not None:
            return bound
        function = self._functions[key]
        if absent:
            function = self._model.functions.add()
            function.CopyFrom(self._functions[key])
            function.overload = self._free(key, absent)
            self._functions[key_of(function)] = function
            _drop_references(function, absent)
        self._waiting.append(function)
        self._overloads[key, absent] = function.overload
        return function.overload

    def _free(self, key: Key, absent: frozenset[str]) -> str:
        domain, name, overload = key
        overload = "_without_".join((overload, *sorted(absent)))
        while (domain, name, overload) in self._functions:
            overload += "_"
        return overload


def _drop_references(function: onnx.FunctionProto, absent: frozenset[str]) -> None:
    """Remove attributes of nodes, also in bodies, that refer to absent attributes of their function."""
    for node in nodes_in(function.node):
        for attribute in [a for a in node.attribute if a.ref_attr_name in absent]:
            node.attribute.remove(attribute)


def align_opsets(model: onnx.ModelProto) -> None:
    """Write the model's opsets into its local functions, in place, if they mean the same.

    They do if the definition of every ONNX operator in a function changed only in types between the two
    opsets. For another domain the function must not have nodes of it except calls of local functions.
    Runtimes use the model's opset for all functions, too.
    """
    versions = {_domain(opset): opset.version for opset in model.opset_import}
    functions = {key_of(function) for function in model.functions}
    for function in model.functions:
        for opset in function.opset_import:
            wanted = versions.get(_domain(opset), opset.version)
            if opset.version != wanted and _means_the_same(function, opset, wanted, functions):
                opset.version = wanted


def _means_the_same(
    function: onnx.FunctionProto, opset: onnx.OperatorSetIdProto, wanted: int, functions: set[Key]
) -> bool:
    operators = {
        node.op_type
        for node in nodes_in(function.node)
        if _domain(node) == _domain(opset) and called(node) not in functions
    }
    if opset.domain not in STANDARD_DOMAINS:
        return not operators
    low, high = sorted((opset.version, wanted))
    return all(definition(op, low) is not None and not changes(op, low, high) for op in operators)


def _domain(entry: onnx.NodeProto | onnx.OperatorSetIdProto) -> str:
    return "" if entry.domain in STANDARD_DOMAINS else entry.domain


@dataclass
class _Size:
    """Size of some nodes: nodes, bytes added by calls, depth of bodies, chain of calls.

    ``references``: how often they refer to attributes of the enclosing function.
    """

    nodes: int = 0
    bytes: int = 0
    levels: int = 0
    calls: int = 0
    references: int = 0

    def add(self, other: _Size, times: int = 1, deeper: int = 0) -> None:
        """Add the size of nested nodes, several times if they are copied."""
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


def _refuse(size: _Size, subject: str) -> None:
    for count, limit, unit in (
        (size.nodes, MOST_NODES, "nodes"),
        (size.bytes, MOST_BYTES, "bytes"),
        (size.levels, MOST_LEVELS, "levels of bodies"),
        (size.calls, MOST_CALLS, "functions that call each other"),
    ):
        if count > limit and size.calls:
            raise ModelError(
                f"{subject} comes to {count:,} {unit} when functions are inlined, at most {limit:,}"
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
    """Return the size of nodes; a call's attributes count for each reference in the function."""
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
