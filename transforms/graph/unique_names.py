"""Names of what a pass put into a model, unique over the graph and all graphs nested in it.

ONNX allows no name twice if one graph is inside the other, and graph-surgeon takes two tensors of one
name there for one. ONNX Runtime's fusions name what they make within one graph alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from transforms.graph import walk

_SUFFIX = "optimized"


class _Renamer:
    def __init__(self, names: walk.Names, reused: str) -> None:
        self._names, self._reused = names, reused
        self._made: set[str] = set()

    def rename(self, graph: onnx.GraphProto, outer: Mapping[str, str]) -> None:
        """Rename what a graph defines, and all that it and its bodies read; ``outer``: names around it."""
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
            for attribute in node.attribute:
                for body in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                    self.rename(body, scope)

    def _new(self, name: str, *, hides: bool) -> str:
        is_free = self._names.is_free(name)
        if hides or name in self._made or (is_free and name.startswith(self._reused)):
            return self._names.derive(name, _SUFFIX)
        if is_free:
            self._names.take(name)
            self._made.add(name)
        return name


def rename_made(graph: onnx.GraphProto, names: walk.Names, *, reused: str) -> None:
    """Give what a pass made names of its own, in place: tensors and nodes, also in bodies.

    ``names`` are those that the model had before. What is new keeps its name unless that is taken, or begins
    with ``reused``, as the names do that the pass would give once more. A tensor of a body that would hide
    one of a graph around it gets another name whether it is new or not.
    """
    _Renamer(names, reused).rename(graph, {})


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.initializer))
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)
