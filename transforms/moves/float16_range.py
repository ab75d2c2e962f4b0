"""Tensors of float16 whose numbers may leave its range: on samples they come near its largest number."""

from __future__ import annotations

import onnx_graphsurgeon as gs

import ops
from transforms.calibrate.calibrate import calibrate
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.judge.constants import HEADROOM
from transforms.plan.quantization_plan import QuantizationPlan

FLOAT16 = "float16"
_LARGEST = ops.get_format(FLOAT16).highest


def rounded(plan: QuantizationPlan, format: str = "") -> list[str]:
    """Return the names of the computed tensors of the main graph that have no ranges, or one format."""
    steps = ((site.tensor, site.steps[-1]) for site in plan.quantizations)
    found = (tensor for tensor, step in steps if not step.needs_range and format in ("", step.format.name))
    return list(dict.fromkeys(str(tensor.name) for tensor in found if plan.specs.is_in_main_graph(tensor)))


def large_tensors(
    graph: gs.Graph, plan: QuantizationPlan, data: CalibrationData
) -> tuple[list[str], list[str]]:
    """Return the names of float16 tensors with numbers near its largest on samples, and with some beyond it.

    Raises as :func:`transforms.calibrate.calibrate.calibrate` does.
    """
    halves = rounded(plan, FLOAT16)
    if not halves:
        return [], []
    seen = calibrate(graph, halves, data.feeds(graph), run=data.run, workers=data.workers).observed
    largest = {name: max(-one.low, one.high) for name, one in seen.items()}
    near = [name for name in halves if largest[name] <= _LARGEST < HEADROOM * largest[name]]
    return near, [name for name in halves if largest[name] > _LARGEST]
