"""From a prepared float graph, a scheme that leaves nothing open, and statistics to the quantized graph."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.full_range.apply_full_range import apply_full_range, shift_grids
from transforms.pipelines.quantize_steps import Quantized, finish_nodes, plan_of, write_plan
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.sampled_exceptions import guarded_nan, kept_in_float
from transforms.plan.scheme_targets import SchemeTargets
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32


def build(
    graph: gs.Graph,
    scheme: Scheme,
    statistics: Calibration | None,
    targets: SchemeTargets,
    done: Quantized,
    memory: WeightMemory | None = None,
) -> Scheme:
    """Quantize a prepared graph in place, and return the scheme of the result.

    That differs from the one given by tensors that held NaN which the model looks for: they stay float.
    """
    plan = plan_of(graph, scheme, targets, done)
    plan = _without_guarded_nan(plan, targets, statistics, done)
    write_plan(plan, statistics, done, memory)
    finish_nodes(graph, scheme, done)
    shift(graph, plan.scheme, statistics, done)
    return plan.scheme


def shift(graph: gs.Graph, scheme: Scheme, statistics: Calibration | None, done: Quantized) -> None:
    """Shift the tensors of a written graph that the scheme names, and their grids."""
    if statistics is not None:
        shifted = apply_full_range(graph, scheme, statistics)
        done.shifted += shifted.count
        shift_grids(done.grids, shifted)


def _without_guarded_nan(
    plan: QuantizationPlan, targets: SchemeTargets, statistics: Calibration | None, done: Quantized
) -> QuantizationPlan:
    scheme, graph = plan.scheme, plan.graph
    names = guarded_nan(plan, statistics.holding_nan) if statistics else []
    if not names:
        return plan
    done.notes.append(kept_in_float(names, "NaN that the model looks for"))
    scheme = scheme.with_(tensors={**scheme.tensors, **dict.fromkeys(names, FLOAT32)})
    return plan_of(graph, scheme, targets, done)
