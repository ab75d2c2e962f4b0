"""Outlying channels of activations moved into the weights that they are multiplied with.

A layer is a product of a computed tensor X with a constant matrix W, which sums over the tensor's channels.
SmoothQuant (arXiv 2211.10438) says of that:

* a tensor has one step, its largest magnitude over 2^(N-1) - 1: an outlying channel j makes the step large
  for all others;
* s_j = max|X_j|^a / max|W_j|^(1-a) is the factor of a channel (:mod:`transforms.channels.factors`), here a
  power of two; for a = 1, it is 1 for channels that are not above a limit;
* X W = (X S^-1) (S W): :func:`move_outliers` divides the tensor, best in constants of the node that makes it,
  and multiplies the weights.

The limit is not a setting: :mod:`transforms.channels.propose_moves` estimates the error of several ones on
samples. Beyond the paper, few channels may leave the tensor for a product of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from transforms.channels.apply_site import move_channels
from transforms.channels.edits import MovedWeights
from transforms.channels.product_sites import layers_on, product_site
from transforms.channels.sites import Site, SiteFinder
from transforms.graph import walk
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.scheme.outlier_move import OutlierMove


def move_outliers(
    graph: gs.Graph,
    moves: Mapping[str, OutlierMove],
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    made: MovedWeights | None = None,
) -> int:
    """Divide channels of tensors by powers of two, or give them products of their own; return how many
    tensors were changed.

    ``moves``, by the name of a tensor of the outermost graph, says what to do with its last axis where MatMul
    and Gemm multiply it with constant matrices, all of them alike:

    * a channel with an exponent is divided by that power of two, and the rows of the weights are multiplied
      by it (SmoothQuant, arXiv 2211.10438): X W = (X S^-1) (S W). Scale and bias of the
      LayerNormalization, or the constant of the Mul, that makes the tensor take the factors in if nothing
      else reads it; or weights and biases of the one layer from which it comes by operators that keep
      channels apart, as those of an attention's values do. Otherwise there is a Mul in front of the layers.
      What the model computes stays the same bit for bit, as long as nothing becomes subnormal or infinite.
    * ``own`` channels become 0 in the tensor and in the weights: X W = X' W' + X_own W_own, a second, narrow
      product that an Add puts to the first, and that no plan puts on integers. The same in real arithmetic;
      sums of float32 are ordered anew.

    A weight that several layers read is stored once for those with the same move; ``made`` keeps what was
    made of weights for further calls.

    Does nothing to tensors that are not there, that no such layer reads, and for nodes in ``exclude``; nor
    with own channels for a Gemm whose alpha is not 1. Raises ValueError for a channel that a tensor does
    not have.
    """
    walk.check_graph(graph)
    left, members = resolve(exclude, graph, nodes), {id(node) for node in graph.nodes}
    finder = SiteFinder(graph)
    tensors = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}

    def _site(name: str, move: OutlierMove) -> Site | None:
        read = layers_on(tensors[name]) if name in tensors else []
        layers = [node for node in read if node not in left and id(node) in members]
        layers = [node for node in layers if not move.own or node.attrs.get("alpha", 1.0) == 1]
        return product_site(finder, tensors[name], layers) if layers else None

    return move_channels(graph, moves, _site, made)
