"""How much an error of each number of a weight counts in what its layer makes.

The error of a dot product is the sum of errors of weights times what they are multiplied with. To first
order, with inputs that do not depend on each other, its mean square is the sum of squared errors weighted by
the mean squares of the inputs: the diagonal of the Gram matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dot_products
from transforms.graph.dot_products import TensorAxis
from transforms.plan.quant_spec import WEIGHT, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan, each_use
from transforms.scheme.scheme import AUTO, Scheme

MINMAX, MSE, WEIGHTED = "MinMax", "MSE", "WeightedMSE"

_COARSE = 4  # bits from which down the largest weight of a channel is a poor measure of its scale

WeighedUse = tuple[tuple[gs.Node, int], gs.Tensor, int]
"""Node and index of the input, what it is multiplied with, and the axis of the sum in that."""

WeighedUses = dict[int, list[WeighedUse]]


def weight_method(scheme: Scheme, step: QuantSpec) -> str:
    """Return how a weight on a symmetric integer grid gets its scale."""
    if (method := scheme.weight_method if step.method == AUTO else step.method) != AUTO:
        return method
    if step.axis is None:
        return WEIGHTED
    return MINMAX if step.format.bits > _COARSE else MSE


def weighed_inputs(plan: QuantizationPlan) -> list[TensorAxis]:
    """Return the tensors of whose channels the mean squares are needed, with the axis of the channels."""
    return list(dict.fromkeys((tensor.name, axis) for _, tensor, axis in _weighed(plan)))


def weighed_uses(plan: QuantizationPlan) -> WeighedUses:
    """Return, by the id of a weight, its uses whose errors are weighted."""
    found: WeighedUses = {}
    for use, tensor, axis in _weighed(plan):
        found.setdefault(id(use[0].inputs[use[1]]), []).append((use, tensor, axis))
    return found


def importance(
    uses: WeighedUses, weight: gs.Constant, mean_squares: Mapping[TensorAxis, NDArray[np.float64]]
) -> NDArray[np.float64] | None:
    """Return the importance of each number of a weight, in a shape that broadcasts to the weight's.

    ``uses`` are ``weighed_uses`` of the plan. ``mean_squares`` has one number per channel, by tensor and
    axis. None where what the weight is multiplied
    with was not measured. A weight that several layers share takes the sum of theirs.
    """
    found = [
        dot_products.along_inputs(node, index, weight.shape, mean_squares[tensor.name, axis])
        for (node, index), tensor, axis in uses.get(id(weight), ())
        if (tensor.name, axis) in mean_squares
    ]
    return sum(found[1:], found[0]) if found else None


def _weighed(plan: QuantizationPlan) -> Iterator[WeighedUse]:
    """Yield uses of weights whose errors are weighted, what each multiplies, and its axis of the sum."""
    for node, index, quantization in each_use(plan):
        step = quantization.steps[-1]
        if quantization.role != WEIGHT or not step.needs_range or not step.symmetric:
            continue
        other = node.inputs[1 - index]
        measurable = isinstance(other, gs.Variable) and other.shape is not None
        if measurable and weight_method(plan.scheme, step) == WEIGHTED and plan.specs.is_in_main_graph(other):
            yield (node, index), other, dot_products.sum_axis(node, 1 - index, len(other.shape))
