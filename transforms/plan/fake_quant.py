"""Quantizations of a plan as functions on arrays, for arithmetic outside of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops.array_types import QParams
from transforms.plan.qdq_writer import rounded
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
            values = rounded(values, step, parameters)
        return values


def fake_quants(
    plan: QuantizationPlan, ranges: Ranges | None, memory: WeightMemory | None = None
) -> dict[Edge, FakeQuant]:
    """Return what a plan does to inputs of nodes, biases aside, which are as fine as the sums are."""
    table = QParamsTable(plan, ranges, memory)
    return {
        (id(node), index): FakeQuant(tuple((step, table.of(site.tensor, step)) for step in site.steps))
        for node, index, site in each_use(plan)
        if site.role != BIAS
    }
