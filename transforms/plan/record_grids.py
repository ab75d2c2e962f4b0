"""The grids of all tensors of a plan, for files of ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import QParams
from transforms.plan.quant_spec import BIAS, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.tensor_grids import TensorGrid


def grids_of(
    plan: QuantizationPlan,
    parameters: Callable[[gs.Tensor, QuantSpec], QParams],
    seen: Mapping[str, tuple[float, float]],
) -> Iterator[TensorGrid]:
    """Yield the grid of each tensor of a plan that becomes integers, biases aside, before it is written.

    ``parameters`` returns scale and zero point; ``seen`` holds lowest and highest number of computed tensors.
    """
    done = set()
    for site in plan.quantizations:
        for step in site.steps:
            key = id(site.tensor), step
            if not step.needs_range or site.role == BIAS or key in done:
                continue
            done.add(key)
            scale, zero_point = parameters(site.tensor, step)
            held = getattr(site.tensor, "values", None)
            ends = seen.get(site.tensor.name, (None, None))
            if held is not None and np.size(held):
                ends = float(np.min(held)), float(np.max(held))
            fmt = step.format
            offset = zero_point.astype(np.int64) - int(fmt.lowest)
            yield TensorGrid(
                site.tensor.name, site.role, fmt.name, int(fmt.bits), step.axis, scale, offset, *ends
            )
