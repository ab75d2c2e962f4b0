"""Traverse a graph and its nested graphs; owners of constants, unused names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from os import PathLike

import onnx_graphsurgeon as gs


def check_graph(graph: object) -> None:
    """Raise TypeError unless this is a graph of graph-surgeon."""
    if isinstance(graph, gs.Graph):
        return
    is_path = isinstance(graph, str | PathLike)
    description = f"the path '{graph}'" if is_path else f"a {type(graph).__name__}"
    is_model = is_path or type(graph).__name__ == "ModelProto"
    hint = ": load it with transforms.model_io.load" if is_model else ""
    raise TypeError(f"a graph of onnx_graphsurgeon is needed, not {description}{hint}")


def reaches(graph: gs.Graph, opset: int, module: str) -> bool:
    """Return whether a graph has the opset that a rewrite needs; if not, log it for the rewrite's module."""
    check_graph(graph)
    if graph.opset < opset:
        logging.getLogger(module).debug("needs opset %d, the graph has %d", opset, graph.opset)
    return bool(graph.opset >= opset)


def graphs(graph: gs.Graph) -> Iterator[gs.Graph]:
    """Yield the graph and then every graph nested in it (bodies of If, Loop and Scan), outer before inner."""
    check_graph(graph)
    yield graph
    for node in graph.nodes:
        for value in node.attrs.values():  # the same as bodies(), in half the time
            if isinstance(value, gs.Graph):
                yield from graphs(value)


def bodies(node: gs.Node) -> Iterator[gs.Graph]:
    """Yield the graphs in a node's attributes, in their order."""
    return (value for value in node.attrs.values() if isinstance(value, gs.Graph))


def nodes(graph: gs.Graph) -> Iterator[gs.Node]:
    """Yield every node of the graph and of the graphs nested in it."""
    for inner in graphs(graph):
        yield from inner.nodes


def tensors(graph: gs.Graph) -> dict[str, gs.Tensor]:
    """Return the tensors of a graph by name, inputs first, the others in the order of their nodes."""
    by_name = {tensor.name: tensor for tensor in graph.inputs}
    for node in graph.nodes:
        by_name |= {t.name: t for t in (*node.inputs, *node.outputs) if t.name}
    return by_name | {tensor.name: tensor for tensor in graph.outputs}


def constants(graph: gs.Graph) -> Iterator[gs.Constant]:
    """Yield each initializer that a node or a graph output uses, once, in the order of first use."""
    seen: set[int] = set()
    for inner in graphs(graph):
        used = (tensor for node in inner.nodes for tensor in node.inputs)
        for tensor in (*used, *inner.outputs):
            if isinstance(tensor, gs.Constant) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def constant_owners(graph: gs.Graph) -> dict[int, gs.Graph]:
    """Map ``id`` of each constant to its owner: the innermost graph that encloses all its uses.

    graph-surgeon does not record where an initializer is stored. A weight captured by both branches of an If
    belongs to the graph around the If.
    """
    paths: dict[int, tuple[gs.Graph, ...]] = {}
    for path in _paths(graph, ()):
        inner = path[-1]
        for tensor in (*(t for node in inner.nodes for t in node.inputs), *inner.outputs):
            if isinstance(tensor, gs.Constant):
                enclosing = paths.get(id(tensor))
                paths[id(tensor)] = path if enclosing is None else _common(enclosing, path)
    return {key: path[-1] for key, path in paths.items()}


def _paths(graph: gs.Graph, outer: tuple[gs.Graph, ...]) -> Iterator[tuple[gs.Graph, ...]]:
    path = (*outer, graph)
    yield path
    for node in graph.nodes:
        for body in bodies(node):
            yield from _paths(body, path)


def _common(a: tuple[gs.Graph, ...], b: tuple[gs.Graph, ...]) -> tuple[gs.Graph, ...]:
    length = 0
    while length < min(len(a), len(b)) and a[length] is b[length]:
        length += 1
    return a[:length]


def producer(tensor: gs.Tensor) -> gs.Node | None:
    """Return the node that produces a tensor; None for constants and inputs."""
    return tensor.inputs[0] if tensor.inputs else None


def is_source(tensor: gs.Tensor) -> bool:
    """Return whether no node computes a tensor: an input of its graph, a constant or an absent input."""
    return producer(tensor) is None


def is_given(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is a constant, or an omitted input of a node."""
    return isinstance(tensor, gs.Constant) or tensor.is_empty()


def way_to(
    ends: Iterable[gs.Tensor],
    is_start: Callable[[gs.Tensor], bool],
    passes: Callable[[gs.Node], bool],
    is_first: Callable[[gs.Node], bool] = lambda node: False,
) -> dict[int, gs.Node] | None:
    """Return the nodes that compute some tensors, by id, back to start tensors.

    None if it meets a node that neither ``passes`` nor ``is_first``, or an input that is not a start. The
    inputs of a first node are not followed.
    """
    way: dict[int, gs.Node] = {}
    waiting = list(ends)
    while waiting:
        tensor = waiting.pop()
        if is_start(tensor):
            continue
        node = producer(tensor)
        if node is None or not (is_first(node) or passes(node)):
            return None
        if id(node) not in way:
            way[id(node)] = node
            waiting += [] if is_first(node) else node.inputs
    return way


def makers(tensors: Iterable[gs.Tensor], passes: Callable[[gs.Node], bool]) -> dict[int, gs.Node]:
    """Return the nodes that compute some tensors, by id, back to nodes that do not pass, without these."""
    passed: dict[int, gs.Node] = {}
    waiting = list(tensors)
    while waiting:
        node = producer(waiting.pop())
        if node is not None and id(node) not in passed and passes(node):
            passed[id(node)] = node
            waiting += node.inputs
    return passed


def steps_to(tensor: gs.Tensor, passes: Callable[[gs.Node], bool]) -> Iterator[gs.Node]:
    """Yield the nodes that compute a tensor from a single other one and constants, last first."""
    while (node := producer(tensor)) is not None and passes(node):
        computed = computed_inputs(node)
        if len(computed) != 1:
            return
        yield node
        (tensor,) = computed


def ancestors(tensor: gs.Tensor) -> set[int]:
    """Return ``id`` of each tensor on which a tensor depends, also through bodies."""
    seen, waiting = set[int](), [tensor]
    while waiting:
        for node in waiting.pop().inputs:
            ends = (output for body in bodies(node) for inner in graphs(body) for output in inner.outputs)
            new = [read for read in (*reads(node), *ends) if id(read) not in seen]
            seen.update(id(read) for read in new)
            waiting += new
    return seen


def computed_inputs(node: gs.Node) -> list[gs.Tensor]:
    """Return the inputs of a node that are not constants."""
    return [tensor for tensor in node.inputs if not is_given(tensor)]


def reads(node: gs.Node) -> Iterator[gs.Tensor]:
    """Yield the tensors that a node reads, also in its bodies."""
    yield from node.inputs
    for body in bodies(node):
        yield from (tensor for inner in nodes(body) for tensor in inner.inputs)


def uses(tensor: gs.Tensor) -> list[tuple[gs.Node, int]]:
    """Return each node that reads the tensor with the index of the input by which it does."""
    users = {id(node): node for node in tensor.outputs}.values()
    return [(node, index) for node in users for index, other in enumerate(node.inputs) if other is tensor]


def uses_beyond(tensor: gs.Tensor, goes_on: Callable[[gs.Node, int], bool]) -> Iterator[tuple[gs.Node, int]]:
    """Yield the uses of a tensor, and those of the outputs of its users as long as ``goes_on`` holds."""
    waiting, seen = [tensor], set[int]()
    while waiting:
        for node, index in uses(waiting.pop()):
            yield node, index
            if id(node) not in seen and goes_on(node, index):
                seen.add(id(node))
                waiting += node.outputs


def is_read_once(tensor: gs.Tensor) -> bool:
    """Return whether a tensor has a single reader; its users are not enumerated."""
    return len(tensor.outputs) == 1


def redirect(tensor: gs.Tensor, target: gs.Tensor) -> None:
    """Make every reader of the tensor read the target instead."""
    for node, index in uses(tensor):
        node.inputs[index] = target


def replace_output(node: gs.Node, tensor: gs.Tensor, target: gs.Tensor) -> None:
    """Make the node produce the target instead of the tensor."""
    node.outputs[[id(output) for output in node.outputs].index(id(tensor))] = target


def is_output(tensor: gs.Tensor, graph: gs.Graph) -> bool:
    """Return whether the tensor is an output of the graph itself, not of a graph nested in it."""
    return any(tensor is output for output in graph.outputs)


def outputs(graph: gs.Graph) -> set[int]:
    """Return ``id`` of each output of the graph and of the graphs nested in it."""
    return {id(tensor) for inner in graphs(graph) for tensor in inner.outputs}


def ends(graph: gs.Graph) -> set[int]:
    """Return ``id`` of each input and output of the graph and of the graphs nested in it."""
    return {id(tensor) for inner in graphs(graph) for tensor in (*inner.inputs, *inner.outputs)}


class Names:
    """The tensor and node names of a whole model, from which unique and stable new names are derived."""

    def __init__(self, graph: gs.Graph | None = None) -> None:
        """Collect all names, including those of nested graphs: an inner name may not hide an outer one."""
        self._taken: set[str] = set()
        for inner in () if graph is None else graphs(graph):
            self._add(inner.inputs)
            self._add(inner.outputs)
            for node in inner.nodes:
                self._taken.add(node.name)
                self._add(node.inputs)
                self._add(node.outputs)

    def _add(self, tensors: Iterable[gs.Tensor]) -> None:
        self._taken.update(tensor.name for tensor in tensors)

    def is_free(self, name: str) -> bool:
        """Return whether the name is unused in the model."""
        return name not in self._taken

    def take(self, name: str) -> None:
        """Mark a name as taken."""
        self._taken.add(name)

    def derive(self, name: str, suffix: str) -> str:
        """Return ``name_suffix``, followed by a number if that is taken, and mark it as taken."""
        stem = f"{name}_{suffix}" if name else suffix
        candidate, number = stem, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{stem}_{number}"
        self._taken.add(candidate)
        return candidate
