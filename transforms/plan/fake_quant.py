"""Quantizations of a plan as functions on arrays, for arithmetic outside of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import QParams
from ops.integer_blocks import dequantize_blocks, quantize_blocks
from ops.integers import dequantize, quantize
from transforms.plan.qdq_writer import on_blocks
from transforms.plan.qparams import QParamsTable, Ranges
from transforms.plan.quant_spec import BIAS, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan, each_use
from transforms.plan.rounding_plan import Edge
from transforms.plan.weight_cache import WeightMemory


@dataclass(frozen=True)
class FakeQuant:
    """What is done to one input of a node: grids one after another, with scale and zero point of integers."""

    steps: tuple[tuple[QuantSpec, QParams | None], ...]

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return float32 numbers as they are read."""
        for step, parameters in self.steps:
            values = _put(values, step, parameters)
        return values


def fake_quants(
    plan: QuantizationPlan, ranges: Ranges | None, memory: WeightMemory | None = None
) -> dict[Edge, FakeQuant]:
    """Return what a plan does to inputs of nodes, biases aside, which are as fine as the sums are."""
    parameters = QParamsTable(plan, ranges, memory)

    def _of(tensor: gs.Tensor, step: QuantSpec) -> tuple[QuantSpec, QParams | None]:
        return step, parameters.of(tensor, step) if step.needs_range else None

    return {
        (id(node), index): FakeQuant(tuple(_of(quantization.tensor, step) for step in quantization.steps))
        for node, index, quantization in each_use(plan)
        if quantization.role != BIAS
    }


def _put(values: NDArray[np.float32], step: QuantSpec, parameters: QParams | None) -> NDArray[np.float32]:
    if parameters is None:
        return np.asarray(on_blocks(values, step), np.float32)
    if step.block and step.axis is not None:
        stored = quantize_blocks(values, parameters, step.format, step.axis, step.block)
        return dequantize_blocks(stored, parameters, step.axis, step.block)
    stored = quantize(values, *parameters, step.format, step.axis)
    return dequantize(stored, *parameters, step.axis)
