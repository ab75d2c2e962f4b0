"""What a scheme names in a model: found before the model is prepared, and again in what that makes of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from ops.legal_names import did_you_mean
from transforms.graph import walk
from transforms.graph.selection import NodeSet, Selection, label_of, matches, select, with_bodies
from transforms.plan.tensor_grids import FixedGrids
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme import Scheme

_MERGED = "/MatMulAddFusion"
"""What the optimizer puts after the name of a MatMul that it makes a Gemm of, together with an Add."""

_Place = tuple[Selection, str, int]
"""The reader of a tensor, its operator, and which input it is."""

_FOLDED = "is gone after optimization, which folded it into its neighbours; optimize = false keeps it"


@dataclass(frozen=True)
class Targets:
    """The nodes and tensors of a graph that a scheme speaks of.

    ``excluded`` nodes stay float, ``rules`` come in the order of the scheme, the later the stronger, and
    ``tensors`` holds, by ``id`` of the tensor, the name in the scheme and that of the format. ``fixed``:
    grids that are given for single tensors beside the scheme.
    """

    excluded: NodeSet
    rules: tuple[tuple[str, NodeSet, LayerRule], ...]
    tensors: dict[int, tuple[str, str]]
    fixed: FixedGrids = field(default_factory=FixedGrids)


class SchemeTargets:
    """Remembers what a scheme names in the model as it was loaded."""

    def __init__(self, graph: gs.Graph, scheme: Scheme) -> None:
        """Find everything; what is not there may still come into being when the graph is prepared."""
        self._scheme, self.fixed = scheme, FixedGrids()
        self.excluded = select(graph, names=scheme.exclude_nodes, op_types=scheme.exclude_op_types)
        self._operators = _operators(graph)
        matching = {pattern: _matching(graph, pattern) for pattern in scheme.layers}
        self._rules = {  # with their operators: what became of a node of another is new
            pattern: (Selection(graph, nodes), {node.op for node in nodes})
            for pattern, nodes in matching.items()
        }
        self._places = {name: _places(graph, name) for name in scheme.tensors}

    def naming(self, graph: gs.Graph, scheme: Scheme) -> SchemeTargets:
        """Return what another scheme names, which may add tensors of a graph to this one."""
        found = copy(self)
        found._scheme = scheme
        found._places = {name: self._places.get(name) or _places(graph, name) for name in scheme.tensors}
        return found

    def resolve_in(self, graph: gs.Graph) -> Targets:
        """Return the targets in the prepared graph.

        Raises ValueError for a name or operator type that matches nothing before and after, or whose node or
        tensor is gone.
        """
        for op_type in self._scheme.op_types:
            present = self._operators | _operators(graph)
            if op_type not in present:
                near = did_you_mean(op_type, sorted(present))
                raise ValueError(f"op_types entry '{op_type}' matches no operator type{near}")
        rules = tuple(
            (pattern, self._resolve_rule(graph, pattern), rule)
            for pattern, rule in self._scheme.layers.items()
        )
        tensors = {
            id(tensor): (name, format)
            for name, format in self._scheme.tensors.items()
            for tensor in self._resolve_tensor(graph, name)
        }
        return Targets(self.excluded.resolve_in(graph), rules, tensors, self.fixed)

    def _resolve_rule(self, graph: gs.Graph, pattern: str) -> NodeSet:
        before, operators = self._rules[pattern]
        kept = NodeSet(node for node in before.resolve_in(graph) if node.op in operators)
        found = kept | _matching(graph, pattern)
        if not len(found):
            if not operators:
                labels = [label_of(node) for node in walk.nodes(graph)]
                near = did_you_mean(pattern, [*labels, *sorted(_operators(graph))])
                raise ValueError(f"layers entry '{pattern}' matches no node name and no operator type{near}")
            raise ValueError(f"layers entry '{pattern}': the node {_FOLDED}")
        return found

    def _resolve_tensor(self, graph: gs.Graph, name: str) -> list[gs.Tensor]:
        """Return the tensors of a name, of which bodies may have several, and what its readers read now."""
        places = self._places[name]
        found = [tensor for tensor in _tensors(graph) if tensor.name == name]
        for reader, op, index in places:
            readers = (node for node in reader.resolve_in(graph) if node.op == op)
            found += [node.inputs[index] for node in readers if index < len(node.inputs)]
        if found:
            return found
        if not places:
            near = did_you_mean(name, (str(tensor.name) for tensor in _tensors(graph)))
            raise ValueError(f"tensors entry '{name}' is not a tensor of the model{near}")
        raise ValueError(f"tensors entry '{name}': the tensor {_FOLDED}")


def _matching(graph: gs.Graph, pattern: str) -> NodeSet:
    """Return the nodes whose name matches or whose operator has the name of the pattern."""
    return with_bodies(
        node
        for node in walk.nodes(graph)
        if pattern in operators(node) or any(matches(label, pattern) for label in _labels(node))
    )


def named(graph: gs.Graph, names: Collection[str]) -> NodeSet:
    """Return the nodes of a graph that entries of ``layers`` speak of which match these names alone."""
    return with_bodies(node for node in walk.nodes(graph) if not _labels(node).isdisjoint(names))


def _labels(node: gs.Node) -> set[str]:
    """Return the names that a node goes by: a Gemm made of a MatMul has that of the MatMul too."""
    return {label_of(node), node.name.removesuffix(_MERGED)} if _was_merged(node) else {label_of(node)}


def operators(node: gs.Node) -> frozenset[str]:
    """Return the operator types that a node goes by: a Gemm that was a MatMul and an Add is MatMul too."""
    return frozenset({node.op, "MatMul"} if _was_merged(node) else {node.op})


def _was_merged(node: gs.Node) -> bool:
    return node.op == "Gemm" and node.name.endswith(_MERGED)


def _operators(graph: gs.Graph) -> set[str]:
    return {op_type for node in walk.nodes(graph) for op_type in operators(node)}


def _tensors(graph: gs.Graph) -> Iterator[gs.Tensor]:
    for inner in walk.graphs(graph):
        tensors: Iterable[gs.Tensor] = (t for node in inner.nodes for t in (*node.inputs, *node.outputs))
        yield from (*inner.inputs, *tensors)


def _places(graph: gs.Graph, name: str) -> list[_Place]:
    """Return where the tensors of a name are read: how they are found again under another name."""
    found = {id(tensor): tensor for tensor in _tensors(graph) if tensor.name == name}
    uses = (use for tensor in found.values() for use in walk.uses(tensor))
    return [(Selection(graph, [node]), node.op, index) for node, index in uses]
