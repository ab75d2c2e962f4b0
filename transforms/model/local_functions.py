"""The local functions of a model, and what has to be written out before onnx inlines them.

onnx's inliner knows nothing of defaults of attributes: what a call does not give is lost, and the operator
inside takes the default of its own definition. It refuses functions of another opset than the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from transforms.graph.proto_graphs import bodies_in
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.schemas import changes, definition

Key = tuple[str, str, str]
"""Domain, name and overload."""


def key_of(function: onnx.FunctionProto) -> Key:
    """Return what calls name a function by."""
    return _key(function.domain, function.name, function.overload)


def called(node: onnx.NodeProto) -> Key:
    """Return the key of the function that a node calls, if there is one of it."""
    return _key(node.domain, node.op_type, node.overload)


def shown(key: Key) -> str:
    """Return a key as users read it."""
    return "::".join(filter(None, key))


def nodes_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of the bodies in them, looked for when the node around them has been handled."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in bodies_in(attribute):
                yield from nodes_in(body.node)


def _key(domain: str, name: str, overload: str) -> Key:
    return "" if domain == "ai.onnx" else domain, name, overload


def write_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose calls of local functions give every attribute that has a default.

    It is the model itself if no function has defaults, else a copy. An attribute without a default that a
    call does not give is absent, and so is one that refers to it: a call inside takes its own default there.
    Such a call gets a copy of the function, an overload, in which no node refers to what is absent.
    Functions must not call themselves.
    """
    if not any(function.attribute_proto for function in model.functions):
        return model
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    _Calls(bound).bind()
    return bound


class _Calls:
    """The calls in a model and in the functions that they reach, which are bound in turn."""

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
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(a for a in function.attribute_proto if a.name not in given)
                node.overload = self._overload(key, frozenset(function.attribute) - given)

    def _overload(self, key: Key, absent: frozenset[str]) -> str:
        """Return the overload to call where some attributes of a function are absent."""
        known = self._overloads.get((key, absent))
        if known is not None:
            return known
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
    """Remove the attributes of nodes, in bodies too, that refer to absent attributes of their function."""
    for node in nodes_in(function.node):
        for attribute in [a for a in node.attribute if a.ref_attr_name in absent]:
            node.attribute.remove(attribute)


def align_opsets(model: onnx.ModelProto) -> None:
    """Write the model's opsets into its local functions, in place, where they mean the same.

    They do where the definition of every operator that a function has from ONNX changed nothing but types
    between the two opsets. In another domain the function must have no nodes but calls of local functions. A
    runtime takes the model's opset for all, too.
    """
    versions = {_domain(opset): opset.version for opset in model.opset_import}
    known = {key_of(function) for function in model.functions}
    for function in model.functions:
        for opset in function.opset_import:
            wanted = versions.get(_domain(opset), opset.version)
            if opset.version != wanted and _means_the_same(function, opset, wanted, known):
                opset.version = wanted


def _means_the_same(
    function: onnx.FunctionProto, opset: onnx.OperatorSetIdProto, wanted: int, known: set[Key]
) -> bool:
    operators = {
        node.op_type
        for node in nodes_in(function.node)
        if _domain(node) == _domain(opset) and called(node) not in known
    }
    if opset.domain not in STANDARD_DOMAINS:
        return not operators
    low, high = sorted((opset.version, wanted))
    return all(definition(op, low) is not None and not changes(op, low, high) for op in operators)


def _domain(one: onnx.NodeProto | onnx.OperatorSetIdProto) -> str:
    return "" if one.domain in STANDARD_DOMAINS else one.domain
