"""Constants with numbers that a float type of a plan does not have: what is stored is its largest one."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.constants import magnitude
from transforms.plan.quant_spec import saturates
from transforms.plan.quantization_plan import QuantizationPlan


def saturated_constants(plan: QuantizationPlan) -> list[str]:
    """Return the names of the constants that saturate in a float type, in the order of first use."""
    found: dict[str, None] = {}
    for site in plan.quantizations:
        fmt = site.steps[-1].format
        is_limited = isinstance(site.tensor, gs.Constant) and saturates(fmt)
        if is_limited and magnitude(site.tensor.values) > fmt.highest:
            found[str(site.tensor.name)] = None
    return [*found]
