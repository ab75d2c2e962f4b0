"""Decomposed layer normalisation becomes one LayerNormalization node, which keeps float32 inside.

Rounding each node of the decomposed form to bfloat16 ruins many models: a variance computed as
E[x^2] - E[x]^2 cancels.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.algebra.interpret import Context
from transforms.algebra.normalisations import Kind, Norm, fuse_norms
from transforms.algebra.polynomial import MEAN, ONE, RSQRT, Polynomial, X, is_close
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, resolve

OPSET = 17
"""First opset with LayerNormalization."""


def fuse_layernorm(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Replace decomposed layer normalisations by LayerNormalization; return how many.

    Takes every form that is algebraically ``(x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias`` with
    constant epsilon, scale and bias: either variance, any order of the affine part, Pow or Mul, ReduceSum
    times 1/N, statistics without their reduced axes that are reshaped and expanded. Without scale, ones take
    its place. Axes that are not the last are transposed there and back. Bodies of If, Loop and Scan included.

    The fused node replaces the largest part whose intermediate results no other node uses; statistics that
    are used elsewhere, or are outputs, stay. Equal up to rounding: LayerNormalization computes the same in
    float32, in another order.

    Does nothing below opset 17, if a node of the pattern is in ``exclude``, for double
    (LayerNormalization computes in float32 at most), if the size of a normalised axis is not known, if
    a scale varies along other axes, if a Reshape or Expand cannot be proven to move nothing, and if
    epsilon is negative. (In float16 the epsilon of an exporter is often 0.)
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    return fuse_norms(graph, resolve(exclude, graph, nodes), _KIND)


def find_layernorm(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Return how many layer normalisations :func:`fuse_layernorm` would replace if the opset were 17."""
    return fuse_norms(graph, exclude, _KIND, writes=False)


def _read(context: Context, output: gs.Tensor, polynomial: Polynomial) -> Norm | None:
    """Return the normalisation if the polynomial is scale * x * rsqrt - scale * mean * rsqrt + bias."""
    roots = {symbol for product in polynomial.terms for symbol, _ in product if symbol.name == RSQRT}
    if len(roots) != 1:
        return None
    root = roots.pop()
    of_x, of_mean = (tuple(sorted(((symbol, 1), (root, 1)))) for symbol in (X, MEAN))
    if not {of_x, of_mean} <= polynomial.terms.keys() <= {of_x, of_mean, ONE}:
        return None
    scale = polynomial.get(of_x)
    if not is_close(scale, -polynomial.get(of_mean), context.tolerance):
        return None
    return Norm(context, output, root.parameter, scale, polynomial.terms.get(ONE))


_KIND = Kind("LayerNormalization", "layernorm", _read)
