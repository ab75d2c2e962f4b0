"""Copy a graph without its weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import onnx_graphsurgeon as gs
from onnx_graphsurgeon.util.misc import SynchronizedList

from transforms.graph.typed import Graph, ModelInfo, Node

Kind = TypeVar("Kind")


def copy_graph(graph: gs.Graph) -> Graph:
    """Return a copy of a graph with the same nodes, names, types and shapes; the weights are shared.

    To change a weight, assign another array to its tensor, here as everywhere.
    """
    copy = _Copier().graph(graph)
    return copy if isinstance(copy, Graph) else Graph.adopt(copy, ModelInfo())


def take_over(graph: gs.Graph, other: gs.Graph) -> None:
    """Replace the content of a graph, in place, by that of another, which may not be used afterwards."""
    graph.__dict__.clear()
    graph.__dict__.update(other.__dict__)


class _Copier:
    """Copies graphs, each tensor once, although bodies read tensors of enclosing graphs."""

    def __init__(self) -> None:
        self._tensors: dict[int, gs.Tensor] = {}

    def graph(self, graph: gs.Graph) -> gs.Graph:
        """Return a copy of a graph; the users of a tensor are in the order of the nodes."""
        copy = _alike(graph)
        copy.inputs = [self._tensor(tensor) for tensor in graph.inputs]
        copy.outputs = [self._tensor(tensor) for tensor in graph.outputs]
        copy.nodes = [self._node(node) for node in graph.nodes]
        copy._functions = list(graph.functions)
        return copy

    def _node(self, node: gs.Node) -> gs.Node:
        copy = _alike(node)
        state = copy.__dict__
        state["attrs"] = {name: self._attribute(value) for name, value in node.attrs.items()}
        state["inputs"] = _synchronized(copy, "outputs", map(self._tensor, node.inputs))
        state["outputs"] = _synchronized(copy, "inputs", map(self._tensor, node.outputs))
        return Node.adopt(copy)

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, gs.Graph):
            return self.graph(value)
        if isinstance(value, gs.Tensor):
            return self._tensor(value)
        return list(value) if isinstance(value, list) else value

    def _tensor(self, tensor: gs.Tensor) -> gs.Tensor:
        copy = self._tensors.get(id(tensor))
        if copy is None:
            copy = self._tensors[id(tensor)] = _alike(tensor)
            state = copy.__dict__
            state["inputs"], state["outputs"] = _synchronized(copy, "outputs"), _synchronized(copy, "inputs")
            if isinstance(state.get("shape"), list):
                state["shape"] = list(state["shape"])
        return copy


def _synchronized(owner: object, end: str, items: Iterable[gs.Tensor] = ()) -> SynchronizedList:
    """Return the result of ``SynchronizedList(owner, end, items)``, in a third of the time."""
    synchronized = SynchronizedList.__new__(SynchronizedList)
    synchronized.parent_obj, synchronized.field_name = owner, end
    list.extend(synchronized, items)
    for item in synchronized:
        list.append(item.__dict__[end], owner)
    return synchronized


def _alike(original: Kind) -> Kind:
    """Return another object with the same class and state."""
    copy = object.__new__(type(original))
    copy.__dict__.update(original.__dict__)
    return copy
