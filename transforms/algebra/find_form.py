"""Finding a function of one tensor that exporters write in many nodes, by its form as a polynomial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.algebra.context import Context, is_float, make_context
from transforms.algebra.interpret import RULES, Order, interpret
from transforms.algebra.polynomial import Monomial
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.dtypes import element_type
from transforms.graph.rewire import STANDARD_DOMAINS, Replacements

log = logging.getLogger(__name__)

_DEPTH = 8  # nodes between x and the core; the longest known form, of GELU, has 6


@dataclass(frozen=True)
class Form:
    """A function of x: operators one of which every way to write it has, and its polynomials, by name."""

    name: str
    cores: Collection[str]
    polynomials: Mapping[str, Mapping[Monomial, float]]


@dataclass(frozen=True)
class FormMatch:
    """``output`` is the function, of the polynomial of that name, of x, which is the context's tensor."""

    context: Context
    output: gs.Tensor
    polynomial: str


def each_form(
    graph: gs.Graph,
    form: Form,
    exclude: Container[gs.Node],
    act: Callable[[Replacements, FormMatch], None] = lambda fused, match: None,
) -> int:
    """Call ``act`` for each place where a graph or a body writes the form; return how many there are.

    Nodes in ``exclude`` are part of none.
    """
    constants, seen = Constants(graph), set()
    for inner in walk.graphs(graph):
        cores = [node for node in inner.nodes if node.op in form.cores and node.domain in STANDARD_DOMAINS]
        order, fused = Order(inner), Replacements(inner)
        for match in (match for core in cores for match in _matches(order, core, form, constants, exclude)):
            if element_type(match.output) not in (None, match.context.element_type):
                log.debug(
                    "%s '%s' is not fused: its type is not that of '%s'",
                    form.name,
                    match.output.name,
                    match.context.root.name,
                )
            elif id(match.output) not in seen:
                seen.add(id(match.output))
                act(fused, match)
        fused.place()
    return len(seen)


def _matches(
    order: Order, core: gs.Node, form: Form, constants: Constants, exclude: Container[gs.Node]
) -> list[FormMatch]:
    """Return the places around a core, of the nearest tensor before it that has any."""
    for root in _ancestors(core, constants):
        element = element_type(root)
        if element is None or not is_float(element):
            continue
        context = make_context(root, element)
        values = interpret(context, constants, exclude)
        found = [
            FormMatch(context, output, name)
            for output in order.of(values)
            for name, polynomial in form.polynomials.items()
            if values[id(output)].polynomial.is_close(polynomial, context.tolerance)
        ]
        if found:
            return found[:1]
    return []


def _ancestors(core: gs.Node, constants: Constants) -> Iterator[gs.Tensor]:
    """Yield the tensors from which the node's argument is computed element by element, nearest first."""
    level: list[gs.Tensor] = list(core.inputs)
    seen: set[int] = set()
    for _ in range(_DEPTH):
        level = [t for t in level if id(t) not in seen and constants.shape(t) is None and not t.is_empty()]
        seen.update(id(tensor) for tensor in level)
        yield from level
        level = [t for tensor in level for node in tensor.inputs if node.op in RULES for t in node.inputs]
