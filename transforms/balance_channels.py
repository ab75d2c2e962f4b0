"""Powers of two moved from a weight to the other operand, so that both suit a coarse grid better."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.scaled_layer import Exponents, Ranges, ScaledLayer
from transforms.graph import dtypes, walk
from transforms.graph.dot_products import is_dot_product, sum_axis
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import position
from transforms.graph.selection import Choice, Exclusion, resolve

_UNEVEN = 64  # largest over smallest range: formats with 7 bits for magnitudes keep one bit of the smallest
_OUTLIER = 16  # over the median range
_LOWERED = 8  # new range of outliers over the median range: lower costs the other operand more
_LEAST, _LARGEST = 2.0**-60, 2.0**60  # range of a channel to scale: far from underflow and overflow


@dataclass(frozen=True)
class _Rule:
    """To which nodes a rule applies, and by which powers of two it divides weights, per input channel.

    ``exponents`` takes the ranges of the channels that can be scaled and returns as many exponents, or None
    if the rule has nothing to change.
    """

    applies: Callable[[gs.Node], bool]
    exponents: Callable[[Ranges], Exponents | None]


def balance_channels(
    graph: gs.Graph,
    *,
    depthwise: bool = True,
    outliers: bool = False,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Multiply the input channels of dot products by powers of two and divide the weights by the same; return
    how many dot products got such a Mul in front.

    * ``depthwise``: convolutions with one group for each input channel, if the largest weights of the
      channels differ by a factor of 64 or more. All get the same range; in trained networks that also evens
      out inputs that differed as much. Meant for block formats, whose blocks run across channels here that
      never meet in a sum.
    * ``outliers``: MatMul and Gemm with a constant second operand, and Conv of one group, if the largest
      weight of an input channel is more than 16 times that of the median channel. It is lowered to about
      8 times the median's; all others stay. Meant for inputs of 16 bits, which have range to spare, and
      weights of few bits.

    Every number that the model computes stays the same bit for bit, as long as none becomes subnormal or
    infinite. A weight that other nodes read, or that is an output of its graph, is not changed: the node
    gets its own copy.

    Does nothing to channels of zeros, to weights that are computed, that are inputs of the graph, or that
    are not float32, to a weight of one axis, and to nodes in ``exclude``.
    """
    rules = [rule for rule, wanted in ((_DEPTHWISE, depthwise), (_OUTLIERS, outliers)) if wanted]
    balancer = _Balancer(graph, resolve(exclude, graph, nodes))
    return sum(balancer.balance(inner, rules) for inner in walk.graphs(graph))


class _Balancer:
    def __init__(self, model: gs.Graph, exclude: Container[gs.Node]) -> None:
        self._names = walk.Names(model)
        self._exclude = exclude
        self._inputs = {id(tensor) for inner in walk.graphs(model) for tensor in inner.inputs}
        self._outputs = walk.outputs(model)

    def balance(self, graph: gs.Graph, rules: list[_Rule]) -> int:
        """Apply the rules to the nodes of one graph; return the number of nodes changed."""
        count = 0
        for node in list(graph.nodes):
            rule = next((rule for rule in rules if self._is_open(node) and rule.applies(node)), None)
            shift = None if rule is None else _find_shift(ScaledLayer(node), rule)
            if shift is not None:
                self._divide_weight(node, shift)
                self._multiply_input(graph, node, shift)
                count += 1
        return count

    def _is_open(self, node: gs.Node) -> bool:
        if not is_dot_product(node) or node in self._exclude:
            return False
        weight = node.inputs[1]
        if not isinstance(weight, gs.Constant) or id(weight) in self._inputs:
            return False
        return dtypes.is_type(weight, dtypes.FLOAT) and len(weight.shape) > 1 and 0 not in weight.shape

    def _divide_weight(self, node: gs.Node, shift: Exponents) -> None:
        weight = node.inputs[1]
        if not walk.is_read_once(weight) or id(weight) in self._outputs:
            node.inputs[1] = constant(self._names.derive(weight.name, "balanced"), weight._values)
        layer = ScaledLayer(node)
        layer.in_shift -= shift
        layer.apply()

    def _multiply_input(self, graph: gs.Graph, node: gs.Node, shift: Exponents) -> None:
        tensor = node.inputs[0]
        balanced = dtypes.variable(self._names.derive(tensor.name, "balanced"), dtypes.FLOAT, tensor)
        factors = np.ldexp(np.float32(1), shift).reshape(_factors_shape(node, len(shift)))
        multiplier = gs.Constant(self._names.derive(tensor.name, "balance"), factors)
        name = self._names.derive(balanced.name, "mul")
        multiply = gs.Node("Mul", name, inputs=[tensor, multiplier], outputs=[balanced])
        node.inputs[0] = balanced
        graph.nodes.insert(position(graph, node), multiply)


def _find_shift(layer: ScaledLayer, rule: _Rule) -> Exponents | None:
    """Return the exponent of two for each input channel, or None if all stay."""
    ranges = layer.in_ranges()
    live = (ranges >= _LEAST) & (ranges <= _LARGEST)
    found = rule.exponents(ranges[live]) if live.any() else None
    if found is None:
        return None
    shift = np.zeros(len(ranges), np.int64)
    shift[live] = found
    return shift


def _factors_shape(node: gs.Node, channels: int) -> list[int]:
    """Return the shape in which a factor for each channel is broadcast to the first operand.

    The last axis of MatMul's first operand stays the last for any number of axes.
    """
    tensor, weight = node.inputs[:2]
    rank = len(weight.shape)
    if node.op == "MatMul":
        rank = 1 if tensor.shape is None else len(tensor.shape)
    shape = [1] * rank
    shape[sum_axis(node, 0, rank)] = channels
    return shape


def _is_depthwise(node: gs.Node) -> bool:
    return node.op == "Conv" and node.inputs[1].shape[1] == 1


def _is_full(node: gs.Node) -> bool:
    """Return whether each output of a layer sums over all input channels."""
    return node.op in ("MatMul", "Gemm") or (node.op == "Conv" and node.attrs.get("group", 1) == 1)


def _even_out(ranges: Ranges) -> Exponents | None:
    """Bring all ranges close to their geometric mean."""
    if ranges.max() < _UNEVEN * ranges.min():
        return None
    logarithms = np.log2(ranges)
    return np.rint(logarithms - logarithms.mean()).astype(np.int64)


def _lower_outliers(ranges: Ranges) -> Exponents | None:
    """Bring outlying ranges close to a multiple of the median."""
    median = np.median(ranges)
    is_outlier = ranges > _OUTLIER * median
    if not is_outlier.any():
        return None
    lowered = np.rint(np.log2(ranges / (_LOWERED * median))).astype(np.int64)
    return np.where(is_outlier, lowered, 0)


_DEPTHWISE = _Rule(_is_depthwise, _even_out)
_OUTLIERS = _Rule(_is_full, _lower_outliers)
