"""Find a function of one tensor that exporters write in many nodes, and replace it by one node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import onnx_graphsurgeon as gs

from transforms.algebra.interpret import RULES, Context, interpret, make_context
from transforms.algebra.polynomial import Monomial
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.dtypes import element_type
from transforms.graph.rewire import Replacements, onnx_op, take_over
from transforms.graph.selection import Exclusion, resolve

_DEPTH = 8  # nodes between x and the core; the longest known form, of GELU, has 6


class Order:
    """The first outputs of a graph's nodes, in the order at construction."""

    def __init__(self, graph: gs.Graph) -> None:
        """Number them."""
        self.graph = graph
        firsts = (node.outputs[0] for node in graph.nodes if node.outputs)
        self._places = {id(tensor): (place, tensor) for place, tensor in enumerate(firsts)}

    def of(self, tensors: Iterable[int]) -> list[gs.Tensor]:
        """Return the tensors with these ids, in order."""
        return [tensor for _, tensor in sorted(self._places[key] for key in tensors if key in self._places)]


@dataclass(frozen=True)
class Form:
    """A function of x: operators, one of which occurs in any spelling, and its polynomials, by name."""

    cores: Collection[str]
    polynomials: Mapping[str, Mapping[Monomial, float]]


@dataclass(frozen=True)
class Match:
    """``output`` is a function of the context's tensor."""

    context: Context
    output: gs.Tensor


@dataclass(frozen=True)
class FormMatch(Match):
    """``polynomial``: the name of the polynomial that matches."""

    polynomial: str


AnyMatch = TypeVar("AnyMatch", bound=Match)
Find = Callable[["Order", Constants, Container[gs.Node]], Iterable[AnyMatch]]
Build = Callable[[AnyMatch, walk.Names], list[gs.Node]]


def fuse(
    graph: gs.Graph, exclude: Exclusion, find: Find[AnyMatch], build: Build[AnyMatch] | None = None
) -> int:
    """Replace the matches of ``find`` in a graph and each body by the nodes of ``build``; return how many.

    The last of those nodes has no output yet: it gets that of the match. Without ``build`` nothing changes.
    """
    constants, excluded, seen = Constants(graph), resolve(exclude, graph), set[int]()
    names = walk.Names(graph if build else None)
    for inner in walk.graphs(graph):
        order, replacements = Order(inner), Replacements(inner)
        for match in find(order, constants, excluded):
            if id(match.output) in seen:
                continue
            seen.add(id(match.output))
            if build:
                news = build(match, names)
                replacements.replace([take_over(news[-1], match.output)], news)
        replacements.place()
    return len(seen)


def fuse_form(graph: gs.Graph, exclude: Exclusion, form: Form, build: Build[FormMatch] | None = None) -> int:
    """Replace each occurrence of the form in a graph and its bodies, as :func:`fuse` does."""

    def _find(order: Order, constants: Constants, kept: Container[gs.Node]) -> Iterator[FormMatch]:
        for core in [node for node in order.graph.nodes if onnx_op(node) in form.cores]:
            match = _nearest_match(order, core, form, constants, kept)
            if match and element_type(match.output) in (None, match.context.element_type):
                yield match

    return fuse(graph, exclude, _find, build)


def _nearest_match(
    order: Order, core: gs.Node, form: Form, constants: Constants, exclude: Container[gs.Node]
) -> FormMatch | None:
    """Return the first match around a core, for the nearest tensor before it that has any."""
    for root in _ancestors(core, constants):
        context = make_context(root)
        values = interpret(context, constants, exclude) if context else {}
        for output in order.of(values):
            for name, polynomial in form.polynomials.items():
                if context and values[id(output)].polynomial.is_close(polynomial, context.tolerance):
                    return FormMatch(context, output, name)
    return None


def _ancestors(core: gs.Node, constants: Constants) -> Iterator[gs.Tensor]:
    """Yield the tensors from which the node's argument is computed element by element, nearest first."""
    level: list[gs.Tensor] = list(core.inputs)
    seen: set[int] = set()
    for _ in range(_DEPTH):
        level = [t for t in level if id(t) not in seen and constants.shape(t) is None and not t.is_empty()]
        seen.update(id(tensor) for tensor in level)
        yield from level
        level = [t for tensor in level for node in tensor.inputs if node.op in RULES for t in node.inputs]
