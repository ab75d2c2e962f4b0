"""Decomposed GELU becomes one Gelu node, which keeps float32 inside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.algebra.context import Context, is_float, make_context
from transforms.algebra.interpret import RULES, Order, interpret
from transforms.algebra.polynomial import monomial
from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.dtypes import element_type
from transforms.graph.rewire import STANDARD_DOMAINS, Replacements, take_over
from transforms.graph.selection import Exclusion, resolve

log = logging.getLogger(__name__)

OPSET = 20
"""First opset with Gelu."""

_DEPTH = 8  # nodes between x and its tanh; the longest known form has 6

_FORMS = {
    "none": {monomial(x=1): 0.5, monomial(x=1, erf=1): 0.5},
    "tanh": {monomial(x=1): 0.5, monomial(x=1, tanh=1): 0.5},
}
_CORES = ("Erf", "Tanh")


@dataclass(frozen=True)
class _Match:
    """``output = Gelu(x)``, x being the context's tensor."""

    context: Context
    output: gs.Tensor
    approximate: str


def fuse_gelu(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Replace decomposed GELUs by Gelu; return how many.

    Takes ``x / 2 * (1 + erf(x / sqrt(2)))`` and ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``,
    multiplied out and associated in any way, in the bodies of If, Loop and Scan too. Intermediate results
    that are used elsewhere, or are outputs, stay. Equal up to rounding and the order of operations.

    Does nothing below opset 20, if a node of the pattern is in ``exclude``, for x * sigmoid(1.702 * x)
    (another function), and if a constant differs from those above by more than a relative 1e-6 (by more
    than the rounding of float16 or bfloat16 in those).
    """
    if graph.opset < OPSET:
        log.debug("Gelu needs opset %d, the graph has %d", OPSET, graph.opset)
        return 0
    names = walk.Names(graph)
    return _visit(graph, resolve(exclude, graph), lambda fused, match: _replace(fused, match, names))


def find_gelu(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Return how many GELUs :func:`fuse_gelu` would replace if the opset were 20."""
    return _visit(graph, resolve(exclude, graph), lambda fused, match: None)


def _visit(graph: gs.Graph, exclude: Container[gs.Node], act: Callable[[Replacements, _Match], None]) -> int:
    constants, seen = Constants(graph), set()
    for inner in walk.graphs(graph):
        cores = [node for node in inner.nodes if node.op in _CORES and node.domain in STANDARD_DOMAINS]
        order, fused = Order(inner), Replacements(inner)
        for match in (match for core in cores for match in _matches(order, core, constants, exclude)):
            reason = _why_not(match)
            if reason:
                log.debug("GELU '%s' is not fused: %s", match.output.name, reason)
            elif id(match.output) not in seen:
                seen.add(id(match.output))
                act(fused, match)
        fused.place()
    return len(seen)


def _matches(order: Order, core: gs.Node, constants: Constants, exclude: Container[gs.Node]) -> list[_Match]:
    """Return the GELUs around an Erf or Tanh, of the nearest tensor before it that has any."""
    for root in _ancestors(core, constants):
        element = element_type(root)
        if element is None or not is_float(element):
            continue
        context = make_context(root, element)
        values = interpret(context, constants, exclude)
        found = [
            _Match(context, output, approximate)
            for output in order.of(values)
            for approximate, form in _FORMS.items()
            if values[id(output)].polynomial.is_close(form, context.tolerance)
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


def _why_not(match: _Match) -> str | None:
    """Return the reason against replacing the match, or None."""
    if element_type(match.output) not in (None, match.context.element_type):
        return f"its type is not that of '{match.context.root.name}'"
    return None


def _replace(fused: Replacements, match: _Match, names: walk.Names) -> None:
    attributes = {"approximate": match.approximate}
    node = gs.Node("Gelu", names.derive(match.output.name, "gelu"), attributes, [match.context.root])
    fused.replace([take_over(node, match.output)], [node])
