"""Facts of a graph that plans need, whatever the scheme: each is found once for all plans of a job.

Most plans of a job are of one graph, or of copies of it. A fact is a set of nodes or tensors; it is
remembered by their places in the graph, and found again in one that differs in anything that facts rest on.
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
    """A set of ``id`` of nodes, or of tensors, and the function that finds them.

    ``operators``: it is empty in a graph without a node of one of these types, and is not looked for there.
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
    """Sets of ``id`` of nodes or tensors of a graph, which stays as it is meanwhile.

    ``known`` remembers them for other graphs like this one.
    """

    graph: gs.Graph
    known: KnownFacts | None

    exact = _Fact(_exact)
    """Nodes: sizes, positions, angles, which no format may round."""
    masking = _Fact(_masking)
    """Nodes that read a mask."""
    zone = _Fact(_zone)
    """Nodes that never compute in integers."""
    lengths = _Fact(_lengths)
    """Nodes that decide how long tensors are with which layers go on."""
    spectra = _Fact(_spectra, operators=frozenset({"Log"}))
    """Nodes that make what a logarithm is taken of."""
    floats = _Fact(_floats)
    """Nodes that may not read what was an integer."""
    beyond_float16 = _Fact(_beyond_float16)
    """Nodes with numbers beyond the range of float16."""
    finer = _Fact(_finer)
    """Products that features give more bits than others."""
    lopsided = _Fact(_lopsided, of_tensors=True)
    """Weights of products that zero points would round better."""
    shared_heads = _Fact(_shared_heads, operators=_LOOKUPS)
    """Products whose weight is a table."""
    logits = _Fact(_logits, operators=_LOOKUPS, of_tensors=True)
    """Outputs that are logits of tokens."""
    rotating = _Fact(_rotating, operators=_LOOKUPS)
    """Products that rotate what a head reads."""
    counted_sentinels = _Fact(_counted_sentinels, of_tensors=True)
    """Tensors with sentinels that something computes with."""
    infinite = _Fact(_infinite, of_tensors=True)
    """Tensors that may hold infinities."""
    meant_infinities = _Fact(_meant_infinities, of_tensors=True)
    """Tensors whose infinities mean something, those of runs among them."""

    def __init__(self, graph: gs.Graph, known: KnownFacts | None = None) -> None:
        """Find nothing yet."""
        self.graph, self.known = graph, known
        self.found: dict[str, frozenset[int]] = {}

    @cached_property
    def types(self) -> frozenset[str]:
        """The types of the nodes, of bodies, too."""
        return frozenset(node.op for node in walk.nodes(self.graph))

    @cached_property
    def form(self) -> Form:
        """The form of the graph."""
        return Form(self.graph)

    @cached_property
    def places(self) -> Places:
        """What is known of graphs of this form."""
        return Places() if self.known is None else self.known.places(self.form)


class KnownFacts:
    """The facts of all forms that a graph has in a job."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._forms: list[tuple[list[Hashable], list[Callable[[], Any]], Places]] = []

    def places(self, form: Form) -> Places:
        """Return what is known of graphs of a form, to read and to add to."""
        for described, constants, places in self._forms:
            if described == form.described and all(map(_holds, constants, form.constants)):
                return places
        self._forms.append((form.described, [_held(values) for values in form.constants], Places()))
        return self._forms[-1][-1]


def _held(values: Any) -> Callable[[], Any]:
    """Return what gives the numbers of a constant, large ones as long as something else holds them."""
    return ref(values) if values.nbytes >= LARGE else lambda: values


def _holds(held: Callable[[], Any], values: Any) -> bool:
    """Return whether numbers are the same: one array, or small ones, which may be read anew, if equal."""
    known = held()
    if known is values or known is None or max(known.nbytes, values.nbytes) >= LARGE:
        return known is values
    one, other = load_values(known), load_values(values)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


class Form:
    """All that facts of a graph rest on: nodes, attributes, connections, types, shapes, stored arrays.

    ``nodes`` and ``tensors``: those of the graph and its bodies, each once. ``described``: what is said of
    them, equal for graphs that are alike; ``constants``: what holds their numbers.
    """

    def __init__(self, graph: gs.Graph) -> None:
        """Go through a graph."""
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
        """Return the place of a tensor among all; what is said of it the first time is that it is there."""
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
