"""Plans of a scheme, and the rows that bring a planned graph into its final form."""

from __future__ import annotations

from collections import Counter

import onnx_graphsurgeon as gs

from transforms import features
from transforms.align_concat import align_concat
from transforms.conversion.notes import note_plan
from transforms.conversion.record import Record
from transforms.conversion.rewriting import Rewritten
from transforms.conversion.rows import Row, features_of, run_feature_rows
from transforms.insert_qdq import insert_qdq
from transforms.plan.qparams import Ranges
from transforms.plan.quant_spec import TABLE
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import SchemeTargets, Targets
from transforms.plan.stored_tables import stored_tables
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme
from transforms.scheme.scheme import AUTO
from transforms.scheme.targets import FOLDING, ON_CPU

_ALIGNED = "Concats on one scale"
_BOUNDED = "weights in int8 with which no pair of products saturates"

_NARROW_BITS = 8


def make_plan(
    graph: gs.Graph, scheme: Scheme, targets: Targets | SchemeTargets, done: Record
) -> QuantizationPlan:
    """Return the plan for a prepared graph, with shared ranges and borders according to the scheme."""
    plan = QuantizationPlan(graph, scheme, targets)
    if scheme.align_concat:
        done.changes[_ALIGNED] = align_concat(plan, alike=scheme.align_concat == AUTO)
    if scheme.dual_quant_nodes:
        from transforms.dual_quant_nodes import dual_quant_nodes

        done.changes["tensors quantized twice, at borders of formats"] = dual_quant_nodes(plan)
    return plan


def write_plan(
    plan: QuantizationPlan, ranges: Ranges | None, done: Record, memory: WeightMemory | None = None
) -> None:
    """Write a plan into its graph; ``memory`` is shared by several plans of one model."""
    done.tensors = Counter(
        (quantization.steps[-1].format.name, quantization.role) for quantization in plan.quantizations
    )
    done.changes[_BOUNDED] = sum(bool(site.steps[-1].pairs) for site in plan.quantizations)
    note_plan(plan, done)
    if plan.scheme.align_concat == AUTO and ranges is not None:
        done.changes[_ALIGNED] = plan.settle(ranges.extremes())
    rounded = [form.planned(plan) for form in plan.specs.formats.at_run_time]
    tables = stored_tables(plan)  # while nodes are still those that the scheme names
    insert_qdq(plan, ranges, memory=memory, grids=done.grids)
    if tables:
        _write_tables(plan, tables, done, memory)
    for products in rounded:
        products.write(done)


def _write_tables(
    plan: QuantizationPlan, tables: list[gs.Constant], done: Record, memory: WeightMemory | None
) -> None:
    """Store embedding tables in int8."""
    from transforms.quantize_tables import TABLE_FORMAT, quantize_tables

    if count := quantize_tables(plan.graph, tables, memory):
        done.tensors[TABLE_FORMAT, TABLE] = count


def fold_relus(work: Rewritten) -> int:
    """Remove Relus and Clips that quantization makes redundant."""
    from transforms.fold_relu import fold_relu

    return fold_relu(work.graph)


def quantize_before_relus(work: Rewritten) -> int:
    """Move quantizations before Relus and Clips."""
    from transforms.runtime_workarounds import quantize_before_relu

    return quantize_before_relu(work.graph)


def write_casts(work: Rewritten) -> None:
    """Write roundings to bfloat16 as Casts."""
    from transforms.qdq_to_cast import qdq_to_cast

    qdq_to_cast(work.graph)


def requantize_captured(work: Rewritten) -> int:
    """Quantize tensors captured by bodies again."""
    from transforms.runtime_workarounds import requantize_captured

    return requantize_captured(work.graph)


def leave_out_zero_points(work: Rewritten) -> int:
    """Remove zero points of 0 that the runtime would move wrongly."""
    from transforms.runtime_workarounds import leave_out_zero_points

    return leave_out_zero_points(work.graph)


def leave_out_pool_attributes(work: Rewritten) -> int:
    """Remove attributes of AveragePools that the runtime's integer operator gets wrong."""
    from transforms.runtime_workarounds import leave_out_pool_attributes

    return leave_out_pool_attributes(work.graph)


def sum_before_layernorms(work: Rewritten) -> int:
    """Replace Add by Sum before LayerNormalizations, which the runtime then computes separately."""
    from transforms.runtime_workarounds import sum_before_layernorm

    return sum_before_layernorm(work.graph)


def keep_weights_float(work: Rewritten) -> int:
    """Keep weights of layers in float beside integers unquantized."""
    from transforms.runtime_workarounds import keep_weights_float

    return keep_weights_float(work.graph)


def finish_features(work: Rewritten) -> int:
    """Run the rows that features have for a quantized graph."""
    run_feature_rows(work, features_of(work.graph), "finish")
    return 0


def narrow_indices(work: Rewritten) -> int:
    """Store tables of indices in fewer bits."""
    from transforms.narrow_indices import narrow_indices

    return narrow_indices(work.graph)


_BUILT = ("build",)
_RECTIFIERS = frozenset({"Relu", "Clip"})
_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})

FINISH: tuple[Row[Rewritten], ...] = (
    Row(
        fold_relus,
        _RECTIFIERS,
        lambda work: work.scheme.fold_relu,
        after=_BUILT,
        line="Relus and Clips folded into quantizations",
    ),
    Row(
        quantize_before_relus,
        _RECTIFIERS,
        lambda work: work.scheme.quantize_before_relu,
        after=("build", "fold_relus"),
        line="Relus and Clips with a quantization in front",
    ),
    Row(write_casts, when=lambda work: work.scheme.bfloat16_as == "cast", after=_BUILT),
    Row(requantize_captured, _BODIES, after=_BUILT),
    Row(leave_out_zero_points, frozenset({"DequantizeLinear"}), after=("build", "requantize_captured")),
    Row(leave_out_pool_attributes, frozenset({"AveragePool"}), after=_BUILT),
    Row(
        sum_before_layernorms,
        frozenset({"LayerNormalization"}),
        lambda work: work.scheme.target == ON_CPU,
        after=_BUILT,
    ),
    Row(keep_weights_float, when=lambda work: work.scheme.target == ON_CPU, after=_BUILT),
    Row(finish_features, features.MARKS, after=_BUILT),
    Row(
        narrow_indices,
        when=lambda work: work.scheme.target in FOLDING and _has_narrow_weights(work.scheme),
        after=_BUILT,
        line="tables of indices in fewer bits",
    ),
)
"""From the graph with quantized tensors to the form that the scheme's runtime expects."""


def _has_narrow_weights(scheme: Scheme) -> bool:
    weight = scheme.format(scheme.weight)
    return weight is not None and weight.is_integer and weight.bits <= _NARROW_BITS
