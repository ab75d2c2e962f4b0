"""Bias correction: biases that compensate the mean error of a layer's rounded weight.

A layer computes W x + b. With rounded weights V it computes V x + b, which on average over samples is off by
(V - W) E[x]: one number for each channel, at all places, which a bias can hold (M. Nagel et al., arXiv
1906.04721). The means are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float32Array, Float64Array
from transforms.graph import dot_products
from transforms.graph.dot_products import TensorAxis
from transforms.plan.quant_spec import BIAS
from transforms.plan.quantization_plan import QuantizationPlan, each_use

_DATA, _WEIGHT = 0, 1


def correctable(plan: QuantizationPlan) -> Iterator[tuple[gs.Node, int]]:
    """Yield nodes with an integer bias that can be corrected, and the index of that input."""
    for node, index, quantization in each_use(plan):
        if quantization.role != BIAS or not quantization.steps[-1].needs_range:
            continue
        data, weight = node.inputs[_DATA], node.inputs[_WEIGHT]
        if not isinstance(weight, gs.Constant) or not plan.specs.is_in_main_graph(data) or data.shape is None:
            continue
        if dot_products.channel_axis(node, _WEIGHT, len(weight.shape)) is not None:
            yield node, index


def corrected_inputs(plan: QuantizationPlan) -> list[TensorAxis]:
    """Return the tensors whose channel means are needed, with the axis of the channels."""
    return list(dict.fromkeys(_read(node) for node, _ in correctable(plan)))


def corrected(
    node: gs.Node, bias: AnyArray, error: NDArray[np.floating], means: Mapping[TensorAxis, Float64Array]
) -> Float32Array | None:
    """Return the corrected bias of a node, given the error of its weight (rounded minus original).

    None if the means of its input were not measured, for a bias without one number for each channel, and for
    a bias without effect, such as that of a Gemm with ``beta`` 0.
    """
    mean = None if node.inputs[_DATA].shape is None else means.get(_read(node))
    if mean is None:
        return None
    axis = dot_products.channel_axis(node, _WEIGHT, error.ndim)
    laid = dot_products.along_inputs(node, _WEIGHT, error.shape, mean)
    other_axes = tuple(i for i in range(error.ndim) if i != axis)
    shift = (error * laid).sum(axis=other_axes, dtype=np.float64)
    if shift.size != bias.size or node.attrs.get("beta", 1.0) == 0:
        return None
    if node.op == "Gemm":
        shift *= node.attrs.get("alpha", 1.0) / node.attrs.get("beta", 1.0)
    return np.asarray(bias.astype(np.float64) - shift.reshape(bias.shape), np.float32)


def _read(node: gs.Node) -> TensorAxis:
    data = node.inputs[_DATA]
    return data.name, dot_products.sum_axis(node, _DATA, len(data.shape))
