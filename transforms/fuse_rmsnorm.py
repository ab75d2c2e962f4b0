"""Decomposed normalisation by the root of the mean square becomes one RMSNormalization node.

It keeps float32 inside, where the decomposed form rounds squares and means of narrow types.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.algebra.interpret import Context
from transforms.algebra.normalisations import Kind, Norm, fuse_norms
from transforms.algebra.polynomial import RMS, Polynomial, X
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, resolve

OPSET = 23
"""First opset with RMSNormalization."""


def fuse_rmsnorm(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Replace decomposed RMS normalisations by RMSNormalization; return how many.

    Takes every form that is algebraically ``x / sqrt(mean(x^2) + epsilon) * scale`` with constant epsilon and
    scale, as language models have it (arXiv 1910.07467): Pow or Mul, Div or Reciprocal, Casts to float32 and
    back, in any order. Without scale, ones take its place. Axes that are not the last are transposed there
    and back. Bodies of If, Loop and Scan included.

    The fused node replaces the largest part whose intermediate results no other node uses; an added bias, and
    statistics that are used elsewhere or are outputs, stay. Equal up to rounding: RMSNormalization computes
    the same in float32, in another order.

    Does nothing below opset 23 (raise it by :func:`transforms.convert_opset.convert_opset`; ONNX Runtime has
    a node of its own for older ones, in ONNX's domain, where onnx.checker refuses it), if a node of the
    pattern is in ``exclude`` or not in ``nodes``, for double, if the size of a normalised axis is not known,
    and if a scale is computed or varies along other axes.
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    return fuse_norms(graph, resolve(exclude, graph, nodes), _KIND)


def _read(context: Context, output: gs.Tensor, polynomial: Polynomial) -> Norm | None:
    """Return the normalisation if the polynomial is scale * x * (the root of the mean square)^-1."""
    term = polynomial.single()
    roots = [symbol for symbol, power in term[0] if symbol.name == RMS and power == 1] if term else []
    if term is None or len(roots) != 1 or term[0] != tuple(sorted(((X, 1), (roots[0], 1)))):
        return None
    return Norm(context, output, roots[0].parameter, term[1], None)


_KIND = Kind("RMSNormalization", "rmsnorm", _read, of_squares=True)
