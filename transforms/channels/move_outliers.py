"""Outlying channels of activations moved into the weights that they are multiplied with.

A layer is a product of a computed tensor X with a constant matrix W, which sums over the tensor's channels.
SmoothQuant (arXiv 2211.10438) says of that:

* a tensor has one step, its largest magnitude over 2^(N-1) - 1: an outlying channel j makes the step large
  for all others;
* s_j = max|X_j|^a / max|W_j|^(1-a) is the factor of a channel; :func:`lowering` takes the powers of two for
  a = 1, and 1 for channels that are not above a limit;
* X W = (X S^-1) (S W): :func:`move_outliers` divides the tensor, best in constants of the node that makes it,
  and multiplies the weights.

The limit is not a setting: :mod:`transforms.channels.propose_moves` estimates the error of several ones on
samples. Beyond the paper, few channels may leave the tensor for a product of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.channels.factor_takers import FactorTakers, channels_of, layers_on, rows_of
from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import Weight, become_constant, constant, derived
from transforms.graph.rewire import Insertions
from transforms.graph.selection import Choice, Exclusion, resolve
from transforms.scheme.outlier_move import OutlierMove

log = logging.getLogger(__name__)

MovedWeights = dict[tuple[int, bool, bytes, bytes], tuple[gs.Tensor, gs.Tensor]]
"""By the ``id`` of a weight, and what was done to it: the weight, which keeps its id so, and the result."""

_MOST_SMOOTHED = 10
"""Exponent between channels: what is smaller than a thousandth of others has no part in their sum."""


def lowering(ranges: Float64Array, limit: float) -> dict[int, int]:
    """Return the exponents of two by which channels are divided, for their ranges max|X_j|."""
    exponents = np.rint(np.log2(np.maximum(ranges / limit, 1))).astype(int)
    return {int(i): int(exponents[i]) for i in np.flatnonzero(exponents)}


def smoothing(ranges: Float64Array, of_weights: Float64Array, share: float) -> dict[int, int]:
    """Return the exponents of two of s_j for ``share`` as a, of which the least is 0.

    ``ranges`` max|X_j|; ``of_weights`` max|W_j|. Channels that are 0 throughout, or tiny, stay as they are.
    """
    counted = np.flatnonzero((ranges > 0) & (of_weights > 0))
    factors = share * np.log2(ranges[counted]) - (1 - share) * np.log2(of_weights[counted])
    highest = factors.max(initial=-np.inf)
    least = max(factors.min(initial=highest), highest - _MOST_SMOOTHED)
    exponents = np.maximum(np.rint(factors - least), 0).astype(int)
    return {int(i): int(power) for i, power in zip(counted, exponents, strict=True) if power}


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
    mover = _Mover(graph, resolve(exclude, graph, nodes), {} if made is None else made)
    known = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}
    count = 0
    for name, move in moves.items():
        moved = name in known and mover.move(known[name], move)
        if not moved:
            log.debug("'%s': no layers whose outliers can be moved", name)
        count += moved
    mover.insertions.place(graph)
    return count


class _Mover:
    def __init__(self, graph: gs.Graph, exclude: Container[gs.Node], made: MovedWeights) -> None:
        self._graph, self._names, self._exclude = graph, walk.Names(graph), exclude
        self._takers = FactorTakers(graph)
        self._fixed = walk.outputs(graph) | {id(t) for inner in walk.graphs(graph) for t in inner.inputs}
        self._made = made
        self.insertions = Insertions()

    def move(self, tensor: gs.Tensor, move: OutlierMove) -> bool:
        """Move outliers of one tensor; return whether there was anything to do."""
        layers = [node for node in layers_on(tensor) if node not in self._exclude]
        layers = [node for node in layers if not move.own or node.attrs.get("alpha", 1.0) == 1]
        members = {id(node) for node in self._graph.nodes}
        layers = [node for node in layers if id(node) in members]
        if not layers:
            return False
        # X S^-1, and S W below; channels with products of their own become 0 in both
        exponents = move.of_channels(tensor.name, channels_of(layers[0]))
        channels = np.array(move.own, np.int64)
        divided = self._divide(tensor, exponents, channels, len(layers))
        if channels.size:
            from transforms.channels.own_products import OwnProducts

            products = OwnProducts(self._graph, self._names, self._made, self.insertions)
            products.add(tensor, layers, channels)
        for node in layers:
            node.inputs[0] = divided
            self._multiply_weight(node, exponents, channels)
        return True

    def _divide(
        self, tensor: gs.Tensor, exponents: NDArray[np.int64], own: NDArray[np.int64], layers: int
    ) -> gs.Tensor:
        """Return X S^-1, the tensor with divided channels, without those that go elsewhere."""
        producer = walk.producer(tensor)
        divided = dtypes.variable(self._names.derive(tensor.name, "moved"), dtypes.FLOAT, tensor)
        if producer is not None and not own.size and self._take_in(producer, tensor, exponents, layers):
            producer.outputs[0] = divided
            return divided
        factors = np.ldexp(np.float32(1), -exponents)
        factors[own] = 0
        multiplier = gs.Constant(self._names.derive(tensor.name, "move"), factors)
        name = self._names.derive(divided.name, "mul")
        multiply = gs.Node("Mul", name, inputs=[tensor, multiplier], outputs=[divided])
        self.insertions.add(self._graph, producer, [multiply])
        return divided

    def _take_in(
        self, producer: gs.Node, tensor: gs.Tensor, exponents: NDArray[np.int64], layers: int
    ) -> bool:
        """Divide channels in constants from which a tensor is made; return whether there are such."""
        factors = self._takers.factors(tensor, layers)
        for index in factors:
            old = producer.inputs[index]
            values = np.ldexp(old.values, -exponents)
            producer.inputs[index] = gs.Constant(self._names.derive(old.name, "moved"), values)
        scaling = None if factors else self._takers.scaling(tensor)
        if scaling is not None:
            scaling.apply(exponents)
        return bool(factors) or scaling is not None

    def _multiply_weight(self, node: gs.Node, exponents: NDArray[np.int64], own: NDArray[np.int64]) -> None:
        """Make the weight S W, without channels that go elsewhere; a copy of it if others read it.

        Those with the same move read one.
        """
        weight, is_turned = node.inputs[1], bool(node.attrs.get("transB", 0))
        key = id(weight), is_turned, exponents.tobytes(), own.tobytes()
        if key in self._made:
            node.inputs[1] = self._made[key][1]
            return
        if not walk.is_read_once(weight) or id(weight) in self._fixed:
            node.inputs[1] = constant(self._names.derive(weight.name, "moved"), weight._values)
            self._made[key] = weight, node.inputs[1]

        def _moved(values: NDArray[np.float32]) -> NDArray[np.float32]:
            values = np.array(values)
            rows = rows_of(node, values)
            raised = np.flatnonzero(exponents)
            rows[raised] = np.ldexp(rows[raised], exponents[raised, None])
            rows[own] = 0
            return values

        source: Weight = node.inputs[1]._values
        become_constant(node.inputs[1], derived(source, _moved, np.float32))
