"""Decomposed GELU becomes one Gelu node, which keeps float32 inside."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.algebra.find_form import Form, FormMatch, fuse_form
from transforms.algebra.polynomial import monomial
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, resolve

OPSET = 20
"""First opset with Gelu."""

_FORM = Form(
    ("Erf", "Tanh"),
    {
        "none": {monomial(x=1): 0.5, monomial(x=1, erf=1): 0.5},
        "tanh": {monomial(x=1): 0.5, monomial(x=1, tanh=1): 0.5},
    },
)


def fuse_gelu(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Replace decomposed GELUs by Gelu; return how many.

    Takes ``x / 2 * (1 + erf(x / sqrt(2)))`` and ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``,
    multiplied out and associated in any way, in the bodies of If, Loop and Scan too. Intermediate results
    that are used elsewhere, or are outputs, stay. Equal up to rounding and the order of operations.

    Does nothing below opset 20, if a node of the pattern is in ``exclude``, for x * sigmoid(1.702 * x)
    (another function), and if a constant differs from those above by more than a relative 1e-6 (by more
    than the rounding of float16 or bfloat16 in those).
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    return fuse_form(graph, resolve(exclude, graph, nodes), _FORM, _gelu)


def find_gelu(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Return how many GELUs :func:`fuse_gelu` would replace if the opset were 20."""
    return fuse_form(graph, exclude, _FORM)


def _gelu(match: FormMatch, names: walk.Names) -> list[gs.Node]:
    name, attributes = names.derive(match.output.name, "gelu"), {"approximate": match.polynomial}
    return [gs.Node("Gelu", name, attributes, [match.context.root])]
