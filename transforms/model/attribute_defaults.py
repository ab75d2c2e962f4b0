"""Attributes that calls of local functions leave to their defaults, written into the calls.

onnx's inliner knows nothing of defaults: what a call does not give is lost, and the operator inside takes the
default of its own definition.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from transforms.model.local_functions import Key, called, key_of, nodes_in


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
