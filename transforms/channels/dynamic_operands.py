"""Operands that products round at run time, whose outlying channels may be moved."""

from __future__ import annotations

import numpy as np

from ops import FORMATS
from transforms.channels.factor_takers import channels_of, layers_on, rows_of
from transforms.channels.propose_moves import LEAST_CHANNELS, Operand, weight_grids
from transforms.graph import walk
from transforms.plan.dynamic_products import dynamic_products
from transforms.plan.quant_spec import QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.run_time_rounding import rounds_rows, row_grid

_AT_RUN_TIME = QuantSpec(FORMATS["uint8"], symmetric=False)
"""The grid of a tensor that is rounded at run time, by DynamicQuantizeLinear."""


def dynamic_operands(plan: QuantizationPlan) -> list[Operand]:
    """Return the operands that products alone round, at run time, to the range of the tensor or its rows.

    Products of single channels cost the time of an Add: they pay where layers make no more than they read.
    """
    products = {id(node): node for node in dynamic_products(plan)}
    tensors, found = {id(node.inputs[0]): node.inputs[0] for node in products.values()}, []
    for tensor in tensors.values():
        layers = layers_on(tensor)
        if not layers or not all(id(node) in products for node in layers):
            continue
        if not plan.specs.is_in_main_graph(tensor) or walk.producer(tensor) is None:
            continue
        if channels_of(layers[0]) < LEAST_CHANNELS:
            continue
        made = sum(rows_of(node, np.empty(node.inputs[1].shape, np.bool_)).shape[1] for node in layers)
        may_split = made <= channels_of(layers[0])
        grids = weight_grids(plan, layers)
        of_rows = row_grid(tensor) if rounds_rows(tensor, plan.scheme.dynamic_ranges) else None
        found.append(Operand(tensor, tuple(layers), _AT_RUN_TIME, grids, may_split, of_rows))
    return found
