"""Facts of a graph that plans need, whatever the scheme: each is computed once for all plans of a job.

Most plans of a job are of one graph, or of copies of it. A fact is a set of nodes or tensors; it is cached
by their places in the graph, and computed again for a graph that differs in anything the fact depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Set
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.lazy_values import LARGE, load_values

Places = dict[str, list[int]]
"""By the name of a fact, the places of its nodes or tensors."""


class _Fact:
    """A set of ``id`` of nodes, or of tensors, and the function that computes it.

    ``operators``: in a graph without any of these node types it is empty and not computed.
    """

    def __init__(
        self,
        find: Callable[[GraphFacts], Iterable[int]],
        *,
        operators: Set[str] = frozenset(),
        of_tensors: bool = False,
    ) -> None:
        self._find, self._of_tensors, self._operators = find, of_tensors, operators

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, facts: GraphFacts, owner: type) -> frozenset[int]:
        if self._name not in facts.found:
            is_absent = self._operators and self._operators.isdisjoint(facts.types)
            facts.found[self._name] = frozenset() if is_absent else self._recalled(facts)
        return facts.found[self._name]

    def _recalled(self, facts: GraphFacts) -> frozenset[int]:
        if facts.known is None:
            return frozenset(self._find(facts))
        parts: list[Any] = facts.form.tensors if self._of_tensors else facts.form.nodes
        if self._name not in facts.places:
            found = set(self._find(facts))
            facts.places[self._name] = [place for place, part in enumerate(parts) if id(part) in found]
        return frozenset(id(parts[place]) for place in facts.places[self._name])


def _exact(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.exact_arithmetic import exact_arithmetic

    return exact_arithmetic(facts.graph)


def _masking(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.float_only_nodes import given_masks

    return given_masks(facts.graph)


def _zone(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.float_only_nodes import float_zone

    return float_zone(facts.graph, facts.masking, facts.exact)


def _lengths(facts: GraphFacts) -> Iterable[int]:
    from transforms.graph.number_shapes import NumberShapes

    return NumberShapes(facts.graph).decided.nodes


def _spectra(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.float_only_nodes import spectra

    return spectra(facts.graph)


def _floats(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.integer_moves import needing_floats

    return needing_floats(facts.graph)


def _beyond_float16(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.float16_range import beyond_float16

    return beyond_float16(facts.graph)


def _finer(facts: GraphFacts) -> Iterable[int]:
    from transforms import features

    opened = features.open_in({*facts.types, features.FEW_BITS})
    return (id(node) for feature in opened for node in feature.finer(facts.graph))


def _lopsided(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.lopsided_weights import lopsided_weights

    return lopsided_weights(facts.graph)


def _shared_heads(facts: GraphFacts) -> Iterable[int]:
    from transforms.graph.embeddings import shared_heads

    return map(id, shared_heads(facts.graph))


def _logits(facts: GraphFacts) -> Iterable[int]:
    from transforms.graph.embeddings import logits_tensors

    return map(id, logits_tensors(facts.graph))


def _rotating(facts: GraphFacts) -> Iterable[int]:
    from transforms.graph.embeddings import rotating_products

    return map(id, rotating_products(facts.graph))


def _counted_sentinels(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.sentinels import sentinels

    return sentinels(facts.graph).counted


def _infinite(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.infinities import infinite_tensors

    return infinite_tensors(facts.graph)


def _meant_infinities(facts: GraphFacts) -> Iterable[int]:
    from transforms.plan.infinities import meant_infinities

    return meant_infinities(facts.graph, computed=True)


_LOOKUPS = frozenset({"Gather"})


class GraphFacts:
    """Sets of ``id`` of nodes or tensors of a graph, which must not change meanwhile.

    ``known`` caches them for other graphs of the same form.
    """

    graph: gs.Graph
    known: KnownFacts | None

    exact = _Fact(_exact)
    """Nodes that compute sizes, positions or angles, which no format may round."""
    masking = _Fact(_masking)
    """Nodes that read a mask."""
    zone = _Fact(_zone)
    """Nodes that never compute in integers."""
    lengths = _Fact(_lengths)
    """Nodes that decide the lengths of tensors in later layers."""
    spectra = _Fact(_spectra, operators=frozenset({"Log"}))
    """Nodes on which a logarithm depends."""
    floats = _Fact(_floats)
    """Nodes that may not read dequantized integers."""
    beyond_float16 = _Fact(_beyond_float16)
    """Nodes with numbers beyond the range of float16."""
    finer = _Fact(_finer)
    """Products to which features give more bits than to others."""
    lopsided = _Fact(_lopsided, of_tensors=True)
    """Weights of products with a smaller error if they have zero points."""
    shared_heads = _Fact(_shared_heads, operators=_LOOKUPS)
    """Products whose weight is an embedding table."""
    logits = _Fact(_logits, operators=_LOOKUPS, of_tensors=True)
    """Outputs that are logits of tokens."""
    rotating = _Fact(_rotating, operators=_LOOKUPS)
    """Products that rotate the input of a head."""
    counted_sentinels = _Fact(_counted_sentinels, of_tensors=True)
    """Tensors with sentinels that take part in computations."""
    infinite = _Fact(_infinite, of_tensors=True)
    """Tensors that may hold infinities."""
    meant_infinities = _Fact(_meant_infinities, of_tensors=True)
    """Tensors whose infinities have a meaning, including those that arise in runs."""

    def __init__(self, graph: gs.Graph, known: KnownFacts | None = None) -> None:
        """Compute nothing yet."""
        self.graph, self.known = graph, known
        self.found: dict[str, frozenset[int]] = {}

    @cached_property
    def types(self) -> frozenset[str]:
        """The types of the nodes, including those of bodies."""
        return frozenset(node.op for node in walk.nodes(self.graph))

    @cached_property
    def form(self) -> Form:
        """The form of the graph."""
        return Form(self.graph)

    @cached_property
    def places(self) -> Places:
        """The cached facts of graphs with this form."""
        return Places() if self.known is None else self.known.places(self.form)


class KnownFacts:
    """Cache of facts for all forms that a graph has in a job."""

    def __init__(self) -> None:
        """Start empty."""
        self._forms: list[tuple[list[Hashable], list[Callable[[], Any]], Places]] = []

    def places(self, form: Form) -> Places:
        """Return the cached facts of a form, to read and to extend."""
        for described, constants, places in self._forms:
            if described == form.described and all(map(_holds, constants, form.constants)):
                return places
        self._forms.append((form.described, [_held(values) for values in form.constants], Places()))
        return self._forms[-1][-1]


def _held(values: Any) -> Callable[[], Any]:
    """Return a function that returns the values of a constant; large ones are only referenced weakly."""
    return ref(values) if values.nbytes >= LARGE else lambda: values


def _holds(held: Callable[[], Any], values: Any) -> bool:
    """Return whether values are the same: one array, or equal small ones, which may have been read again."""
    known = held()
    if known is values or known is None or max(known.nbytes, values.nbytes) >= LARGE:
        return known is values
    one, other = load_values(known), load_values(values)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


class Form:
    """Everything that facts of a graph depend on: nodes, attributes, connections, types, shapes, constants.

    ``nodes`` and ``tensors``: of the graph and its bodies, each once. ``described``: their descriptions,
    equal for equal graphs; ``constants``: references to constant values.
    """

    def __init__(self, graph: gs.Graph) -> None:
        """Traverse a graph."""
        self.nodes: list[gs.Node] = []
        self.tensors: list[gs.Tensor] = []
        self.described: list[Hashable] = []
        self.constants: list[Any] = []
        self._places: dict[int, int] = {}
        self._add(graph)

    def _add(self, graph: gs.Graph) -> None:
        self.described.append(self._all(graph.inputs))
        for node in graph.nodes:
            self.nodes.append(node)
            ends = self._all(node.inputs), self._all(node.outputs)
            attributes = tuple((name, self._attribute(value)) for name, value in node.attrs.items())
            self.described.append((node.op, node.domain, node.name, *ends, attributes))
        self.described.append(self._all(graph.outputs))

    def _all(self, tensors: Iterable[gs.Tensor]) -> tuple[int, ...]:
        return tuple(map(self._place, tensors))

    def _place(self, tensor: gs.Tensor) -> int:
        """Return the index of a tensor; a new tensor is added and described."""
        place = self._places.setdefault(id(tensor), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(tensor)
            if isinstance(tensor, gs.Constant):
                self.constants.append(tensor._values)
                self.described.append(tensor.name)
            else:
                shape = None if tensor.shape is None else tuple(tensor.shape)
                self.described.append((tensor.name, tensor.dtype, shape))
        return place

    def _attribute(self, value: Any) -> Hashable:
        if isinstance(value, gs.Graph):
            self._add(value)
            return None
        if isinstance(value, gs.Tensor):
            return self._place(value)
        if isinstance(value, np.ndarray):
            self.constants.append(value)
            return None
        return tuple(value) if isinstance(value, list) else value
