"""Powers of two moved from a weight to the other operand, so that both fit a coarse grid better."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from transforms.channels.edits import Edits, scaled
from transforms.channels.factors import evened_out, without_outliers
from transforms.channels.per_channel import Exponents, PerChannel, Ranges, has_weight, inputs_of
from transforms.graph import walk
from transforms.graph.dot_products import sum_axis
from transforms.graph.rewire import position
from transforms.graph.selection import Choice, Exclusion, resolve

_LEAST, _LARGEST = 2.0**-60, 2.0**60  # range of a channel to scale: far from underflow and overflow


def balance_channels(
    graph: gs.Graph,
    *,
    depthwise: bool = True,
    outliers: bool = False,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
) -> int:
    """Move powers of two from the input channels of weights to their inputs; return how many layers changed.

    The inputs of a dot product go through a Mul, and its weights are divided by the same factors.

    * ``depthwise``: convolutions with one group for each input channel, if the largest weights of the
      channels differ by a factor of 64 or more. All channels get the same range; in trained networks this
      also evens out inputs, which differ as much. Meant for block formats, whose blocks here extend across
      channels that are never summed.
    * ``outliers``: MatMul and Gemm with a constant second operand, and Conv of one group, if the largest
      weight of an input channel is more than 16 times that of the median channel. Such a channel is reduced
      to about 8 times the median; all others stay. Meant for 16-bit inputs, which have range to spare, and
      low-bit weights.

    Every number that the model computes stays the same bit for bit, as long as none becomes subnormal or
    infinite. A weight that other nodes read, or that is an output of its graph, is not changed: the node
    gets its own copy.

    Does nothing to channels of zeros, to weights that are computed, that are inputs of the graph, or that
    are not float32, to a weight of one axis, and to nodes in ``exclude``.
    """
    rules = [rule for rule, wanted in ((_DEPTHWISE, depthwise), (_OUTLIERS, outliers)) if wanted]
    left, edits = resolve(exclude, graph, nodes), Edits(graph, "balance")
    graph_inputs = {id(tensor) for inner in walk.graphs(graph) for tensor in inner.inputs}
    count = 0
    for inner in walk.graphs(graph):
        layers = [node for node in inner.nodes if node not in left and has_weight(node, graph_inputs)]
        for node in layers:
            rule = next((divide for applies, divide in rules if applies(node)), np.zeros_like)
            exponents = _of_live_channels(rule, inputs_of(node))
            if exponents.any():
                _balance(edits, inner, inputs_of(node), exponents)
                count += 1
    return count


def _of_live_channels(rule: Callable[[Ranges], Exponents], weight: PerChannel) -> Exponents:
    """Return the exponents of a rule, and 0 for channels whose ranges it should not scale."""
    ranges = weight.ranges(weight.constant.values)
    live = (ranges >= _LEAST) & (ranges <= _LARGEST)
    exponents = np.zeros(len(ranges), np.int64)
    exponents[live] = rule(ranges[live]) if live.any() else 0
    return exponents


def _balance(edits: Edits, graph: gs.Graph, weight: PerChannel, exponents: Exponents) -> None:
    """Divide the channels of a weight by powers of two, and insert a Mul by them before the other operand."""
    node, tensor = weight.node, weight.node.inputs[0]
    edits.change(node, weight.index, partial(scaled, [-weight.laid(exponents)]))
    factors = np.ldexp(np.float32(1), exponents).reshape(_factors_shape(node, len(exponents)))
    multiply = edits.multiplied(tensor, factors)
    node.inputs[0] = multiply.outputs[0]
    graph.nodes.insert(position(graph, node), multiply)


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


_DEPTHWISE, _OUTLIERS = (_is_depthwise, evened_out), (_is_full, without_outliers)
"""To which layers a rule applies, and how it divides the input channels of their weights."""
