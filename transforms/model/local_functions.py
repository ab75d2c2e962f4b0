"""The local functions of a model: how a call names its function, and the nodes that lie in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from transforms.graph.proto_graphs import bodies_in

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
