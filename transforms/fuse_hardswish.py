"""HardSwish restored after decomposition by ONNX Runtime's optimizer, which lacks a kernel, or exporters."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.algebra.find_form import Form, FormMatch, fuse_form
from transforms.algebra.polynomial import monomial
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, resolve

OPSET = 14
"""First opset with HardSwish."""

_FORM = Form(("Clip", "HardSigmoid"), {"": {monomial(relu6=1, x=1): 1 / 6}})


def fuse_hardswish(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Replace ``x * HardSigmoid(x, alpha=1/6, beta=1/2)`` by HardSwish, in all bodies; return how many.

    ``x * Clip(x + 3, 0, 6) / 6``, associated in any way, is replaced as well. Results are equal up to
    rounding: the new node rounds once, and not after each operation. It has the name of the last node that it
    replaces. Intermediate results that are used elsewhere, or are outputs, stay. Does nothing below opset 14,
    for another alpha or beta, and if one of the nodes is in ``exclude``.
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    excluded = resolve(exclude, graph, nodes)
    return fuse_form(graph, excluded, _FORM, _hardswish)


def find_hardswish(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Return how many HardSwishes :func:`fuse_hardswish` would restore if the opset were 14."""
    return fuse_form(graph, exclude, _FORM)


def _hardswish(match: FormMatch, names: walk.Names) -> list[gs.Node]:
    return [gs.Node("HardSwish", match.output.inputs[0].name, inputs=[match.context.root])]
