"""Operands that only products rounded at run time read, whose outliers may be moved; the error of rows."""

from __future__ import annotations

from functools import partial

import numpy as np

from ops import FORMATS
from ops.array_types import Float32Array, Float64Array
from ops.channel_sums import channel_sums
from transforms.channels.per_channel import inputs_of, outputs_of
from transforms.channels.product_sites import layers_on
from transforms.channels.propose_moves import LEAST_CHANNELS, Operand, weight_grids
from transforms.features.dynamic.products import dynamic_products
from transforms.features.dynamic.rounding import SYMMETRIC, RowGrid, rounds_rows, row_grid
from transforms.graph import walk
from transforms.plan.quant_spec import QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan

_AT_RUN_TIME = QuantSpec(FORMATS["uint8"], symmetric=False)
"""The grid of DynamicQuantizeLinear."""


def dynamic_operands(plan: QuantizationPlan) -> list[Operand]:
    """Return the operands that only dynamic products read, to the range of the tensor or of its rows.

    Products of single channels cost an Add: they pay where layers have no more outputs than inputs.
    """
    products = {id(node): node for node in dynamic_products(plan)}
    tensors, operands = {id(node.inputs[0]): node.inputs[0] for node in products.values()}, []
    for tensor in tensors.values():
        layers = layers_on(tensor)
        if not layers or not all(id(node) in products for node in layers):
            continue
        if not plan.specs.is_in_main_graph(tensor) or walk.producer(tensor) is None:
            continue
        if inputs_of(layers[0]).channels < LEAST_CHANNELS:
            continue
        outputs = sum(outputs_of(node).channels for node in layers)
        may_split = outputs <= inputs_of(layers[0]).channels
        grids = weight_grids(plan, layers)
        in_rows = rounds_rows(tensor, plan.scheme.dynamic_ranges)
        of_rows = partial(row_error, row_grid(tensor)) if in_rows else None
        operands.append(Operand(tensor, tuple(layers), _AT_RUN_TIME, grids, may_split, of_rows))
    return operands


def row_error(grid: RowGrid, held_out: Float32Array, norms: Float64Array, is_moved: bool) -> float:
    """Return the mean squared error of the outputs of layers due to rounding each row to its own range.

    ``norms``: of the weights' rows; ``is_moved``: after a move, nothing is known of the sign of the numbers.
    """
    grid = SYMMETRIC if is_moved else grid
    numbers = np.abs(held_out) if grid.of_magnitudes else held_out
    scales = np.maximum(numbers.max(1, keepdims=True), np.float32(grid.least)) / np.float32(grid.steps)
    errors = held_out - np.clip(np.rint(held_out / scales), -grid.zero_point, grid.steps) * scales
    return float(channel_sums(errors, 1)[1] @ norms) / max(1, len(held_out))
