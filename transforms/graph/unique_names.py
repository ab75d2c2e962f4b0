"""Make names unique in a graph and its nested graphs, in models and in results of passes.

ONNX allows a body to reuse a name that an enclosing graph gives to a later tensor, and graph-surgeon takes
the two for one. ONNX Runtime's fusions choose names that are unique within one graph only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from transforms.graph import walk
from transforms.graph.proto_graphs import bodies, each_graph


class _Renamer:
    def __init__(self, names: walk.Names, suffix: str, reused: tuple[str, ...] = ()) -> None:
        self._names, self._suffix, self._reused = names, suffix, reused
        self._made: set[str] = set()

    def rename(self, graph: onnx.GraphProto, outer: Mapping[str, str]) -> None:
        """Rename the tensors defined by a graph and its bodies; ``outer``: new names of enclosing graphs."""
        scope = dict(outer)
        scope |= {name: self._new(name, hides=name in outer) for name in dict.fromkeys(_defined(graph))}
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = scope.get(value.name, value.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = scope[sparse.values.name]
        for node in graph.node:
            node.name = self._new(node.name, hides=False) if node.name else ""
            for tensors in (node.input, node.output):
                tensors[:] = [scope.get(name, name) for name in tensors]
            for body in bodies(node):
                self.rename(body, scope)

    def _new(self, name: str, *, hides: bool) -> str:
        is_free = self._names.is_free(name)
        if hides or name in self._made or (is_free and name.startswith(self._reused)):
            return self._names.derive(name, self._suffix)
        if is_free:
            self._names.take(name)
            self._made.add(name)
        return name


def rename_made(graph: onnx.GraphProto, names: walk.Names, *, reused: str) -> None:
    """Give unique names to the tensors and nodes made by a pass, in place, also in bodies.

    ``names`` are those of the model before the pass. A new name stays unless it is taken, or begins with
    ``reused``, the prefix of names that the pass would give again. A tensor of a body that would hide one of
    an enclosing graph gets another name, new or not.
    """
    _Renamer(names, "optimized", (reused,)).rename(graph, {})


def rename_hiding(graph: onnx.GraphProto) -> None:
    """Rename each tensor of a body whose name an enclosing graph also defines, in place."""
    if any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        names = walk.Names()
        for inner in each_graph(graph):
            for name in (*_defined(inner), *(node.name for node in inner.node)):
                names.take(name)
        _Renamer(names, "inner").rename(graph, {})


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.initializer))
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)
