"""The steps of quantizing a float model, from the graph as it was loaded to the graph as it is saved."""

from __future__ import annotations

from collections import Counter
from functools import cache

import onnx_graphsurgeon as gs

from transforms.align_concat import align_concat
from transforms.channels.apply_moves import apply_moves
from transforms.channels.balance_channels import balance_channels
from transforms.channels.equalize_layers import equalize_layers
from transforms.channels.rotate_channels import rotate_channels
from transforms.conversion import inspect_bf16
from transforms.conversion.notes import note_plan, note_recurrent
from transforms.conversion.prepare import note_mended, prepare
from transforms.conversion.record import Record
from transforms.dual_quant_nodes import dual_quant_nodes
from transforms.fix_shapes import fix_shapes
from transforms.fold_relu import fold_relu
from transforms.graph import walk
from transforms.graph.some_names import some_names
from transforms.insert_qdq import insert_qdq, raise_opset
from transforms.lift_constants import lift_constants
from transforms.lower_opset import lower_opset
from transforms.model import provenance
from transforms.model.read_model import ModelError
from transforms.narrow_indices import narrow_indices
from transforms.order_channels import order_channels
from transforms.part_biases import part_biases
from transforms.plan.dynamic_products import dynamic_products
from transforms.plan.exact_sums import orders_channels
from transforms.plan.qparams import Ranges
from transforms.plan.quant_spec import QUANTIZED_BY, TABLE
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.rows_writer import FOLDING
from transforms.plan.scheme_targets import FormatTable, SchemeTargets, Targets
from transforms.plan.stored_tables import stored_tables
from transforms.plan.weight_cache import WeightMemory
from transforms.qdq_to_cast import qdq_to_cast
from transforms.quantize_dynamic import quantize_dynamic
from transforms.quantize_tables import TABLE_FORMAT, quantize_tables
from transforms.runtime_workarounds import (
    keep_weights_float,
    leave_out_biases,
    leave_out_pool_attributes,
    leave_out_zero_points,
    quantize_before_relu,
    requantize_captured,
    sum_before_layernorm,
)
from transforms.saturate import saturate, tensors_with_nan
from transforms.scheme import Scheme
from transforms.scheme.dynamic_layers import is_dynamic
from transforms.scheme.scheme import AUTO
from transforms.scheme.targets import ON_CPU
from transforms.write_dynamic_lstm import write_dynamic_lstm
from transforms.write_out_axes import write_out_axes

EQUALIZED = "pairs of layers equalized"
ROTATED = "weights with rotated channels"
ORDERED = "groups of channels in an order in which sums saturate less"
SCALED = "tensors with channels scaled between layers"
MOVED = "tensors with outliers moved into weights"
DYNAMIC = "products that round their inputs at run time"

_ALIGNED = "Concats on one scale"
_BOUNDED = "weights in int8 with which no pair of products saturates"

_WIDE_ACTIVATION, _NARROW_WEIGHT = 16, 8  # bits
_NARROW_BITS = 8

_IN_INTEGERS = frozenset(
    {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QGemm", "DynamicQuantizeMatMul"}
    | {"MatMulIntegerToFloat", "QAttention", "DynamicQuantizeLSTM", "MatMulNBits"}
    | {"MatMulBnb4", "MatMulFpQ4", "QMoE", "MatMulNBitsMlp", "MatMulNBitsQkv"}
    | {"MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight"}
)
"""Operators beside those of the name QLinear... that compute with quantized numbers, also of ONNX Runtime."""


def make_plan(
    graph: gs.Graph, scheme: Scheme, targets: Targets | SchemeTargets, done: Record
) -> QuantizationPlan:
    """Return the plan for a prepared graph, with shared ranges and borders as the scheme wants them."""
    plan = QuantizationPlan(graph, scheme, targets)
    if scheme.align_concat:
        done.changes[_ALIGNED] = align_concat(plan, alike=scheme.align_concat == AUTO)
    if scheme.dual_quant_nodes:
        done.changes["tensors quantized twice, at borders of formats"] = dual_quant_nodes(plan)
    return plan


def write_plan(
    plan: QuantizationPlan, ranges: Ranges | None, done: Record, memory: WeightMemory | None = None
) -> None:
    """Write a plan into its graph; ``memory`` is that of several plans of one model."""
    done.tensors = Counter(
        (quantization.steps[-1].format.name, quantization.role) for quantization in plan.quantizations
    )
    done.changes[_BOUNDED] = sum(bool(site.steps[-1].pairs) for site in plan.quantizations)
    note_plan(plan, done)
    if plan.scheme.align_concat == AUTO and ranges is not None:
        done.changes[_ALIGNED] = plan.settle(ranges.extremes())
    dynamic = dynamic_products(plan)
    tables = stored_tables(plan)  # as long as nodes are those that the scheme speaks of
    insert_qdq(plan, ranges, memory=memory, grids=done.grids)
    if count := quantize_tables(plan.graph, tables, memory):
        done.tensors[TABLE_FORMAT, TABLE] = count
    _write_dynamic(plan, dynamic, done)


def _write_dynamic(plan: QuantizationPlan, products: list[gs.Node], done: Record) -> None:
    """Let products round their inputs at run time."""
    ranges = plan.scheme.dynamic_ranges
    if products and (count := quantize_dynamic(plan.graph, ranges=ranges, nodes=products)):
        done.changes[DYNAMIC] = count
        sum_before_layernorm(plan.graph)


def finish_nodes(graph: gs.Graph, scheme: Scheme, done: Record) -> None:
    """Do with the nodes of a quantized graph what the scheme wants done with them."""
    if scheme.fold_relu:
        done.changes["Relus and Clips folded into quantizations"] = fold_relu(graph)
    if scheme.quantize_before_relu:
        done.changes["Relus and Clips with a quantization in front"] = quantize_before_relu(graph)
    if scheme.bfloat16_as == "cast":
        qdq_to_cast(graph)
    requantize_captured(graph)
    leave_out_zero_points(graph)
    leave_out_pool_attributes(graph)
    if scheme.target == ON_CPU:
        sum_before_layernorm(graph)
        keep_weights_float(graph)
        if _has_narrow_activations(scheme) or is_dynamic(scheme):
            done.changes["LSTMs that quantize inputs and states in every step"] = write_dynamic_lstm(graph)
    note_recurrent(graph, done)
    if scheme.target in FOLDING and _has_narrow_weights(scheme):
        done.changes["tables of indices in fewer bits"] = narrow_indices(graph)


def prepare_for(graph: gs.Graph, scheme: Scheme, done: Record | None = None) -> SchemeTargets:
    """Bring a float model into the form that a scheme quantizes, in place; return what the scheme names.

    Every number that it computes stays the same, up to rounding in float32 and factors between layers. Raises
    as :func:`quantize_graph` does.
    """
    lift_constants(graph)
    _refuse_quantized(graph)
    fix_shapes(graph, scheme.input_shapes)
    write_out_axes(graph)
    if scheme.opset:
        lower_opset(graph, scheme.opset)
    targets = SchemeTargets(graph, scheme)
    _prepare(graph, scheme, targets, Record() if done is None else done)
    return targets


def _refuse_quantized(graph: gs.Graph) -> None:
    """Raise ModelError for a model with values on grids; what left no node is in its metadata."""
    for node in walk.nodes(graph):
        if node.op in QUANTIZED_BY or node.op in _IN_INTEGERS or node.op.startswith("QLinear"):
            name = node.name or node.outputs[0].name
            raise ModelError(f"the model is quantized already: '{name}' is a {node.op} node")
    if provenance.tool(graph.info.metadata) == "quantize":
        raise ModelError("the model is quantized already: tools.quantize made it")
    state = inspect_bf16.describe(graph)
    if state.converted:
        raise ModelError(f"the model is quantized already, to BF16: {state.format}")


def _prepare(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets, done: Record) -> None:
    leave_out_biases(graph)
    if unknown := tensors_with_nan(graph):
        raise ModelError(
            f"NaN in {len(unknown)} weights, '{unknown[0]}' the first: no format can stand for it"
        )
    prepared = prepare(
        graph,
        targets.excluded,
        optimized=scheme.optimize,
        newest=scheme.opset,
        keep_tied=_keeps_tied(scheme),
    )
    done.notes += prepared.notes
    done.changes.update({f"{op} fused": count for op, count in prepared.fused.items()})
    if any(fmt.name == "bfloat16" for fmt in (*scheme.named_formats, scheme.other_format) if fmt):
        saturated: list[str] = []
        done.changes["weights saturated at +-3.38953139e38"] = saturate(
            graph, exclude=targets.excluded, names=saturated
        )
        done.notes += [f"Saturated at +-3.38953139e38: {some_names(saturated)}"] if saturated else []
    leave_out_biases(graph)  # of what was put together or taken apart meanwhile, too
    done.changes["biases with masks, added after the layer"] = _part_biases(graph, scheme, targets)
    if orders_channels(scheme):  # before anything that names channels by their numbers
        done.changes[ORDERED] = order_channels(graph, exclude=targets.excluded)
    if scheme.equalize_layers is True:
        equalize(graph, targets, done)
    if scheme.rotate_channels:
        rotate(graph, done)
    if scheme.balance_channels:
        formats = scheme.format(scheme.activation), scheme.format(scheme.weight)
        done.changes["layers balanced by a Mul in front"] = balance_channels(
            graph,
            depthwise=any(fmt.block > 1 for fmt in formats if fmt),
            outliers=_has_headroom_for_outliers(scheme),
            exclude=targets.excluded,
        )
    move_named_outliers(graph, scheme, targets, done)
    raise_opset(graph, scheme)
    note_mended(graph, done.notes)


def _keeps_tied(scheme: Scheme) -> bool:
    """Return whether heads multiply by the Transpose of an embedding: none has a format for weights alone."""
    activation, mixing = scheme.format(scheme.activation), scheme.auto_mixed_precision
    if mixing is not None:
        choices = mixing.choices(scheme.activation, scheme.weight)
        names = (scheme.activation, *(one.activation or scheme.activation for one in choices))
        return all(scheme.format(name) is None for name in names)
    return activation is None or (activation.is_float and scheme.weight == scheme.activation)


def _part_biases(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets) -> int:
    """Part the biases that may become integers; formats are looked at where masks are found."""
    mixes = bool(scheme.auto_mixed_precision) and any(fmt.is_integer for fmt in scheme.named_formats)
    table = cache(lambda: FormatTable(graph, scheme, targets.resolve_in(graph)))
    return part_biases(graph, lambda node: mixes or table()[node].wants_grids)


def equalize(graph: gs.Graph, targets: SchemeTargets, done: Record) -> None:
    """Equalize the layers that are not excluded."""
    done.changes[EQUALIZED] = equalize_layers(graph, exclude=targets.excluded)


def rotate(graph: gs.Graph, done: Record) -> None:
    """Rotate the channels of the states of language models."""
    done.changes[ROTATED] = rotate_channels(graph)


def move_named_outliers(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets, done: Record) -> None:
    """Move the outliers that the scheme names; ValueError for a tensor of which nothing can be moved."""
    moves = {name: scheme.outlier_move(name) for name in scheme.outliers}
    labels = {"moved": MOVED, "scaled": SCALED}
    found = apply_moves(graph, moves, exclude=targets.excluded)
    done.changes.update({labels[what]: count for what, count in found.items()})


def _has_headroom_for_outliers(scheme: Scheme) -> bool:
    activation, weight = scheme.format(scheme.activation), scheme.format(scheme.weight)
    if activation is None or weight is None or not (activation.is_integer and weight.is_integer):
        return False
    return activation.bits >= _WIDE_ACTIVATION and weight.bits <= _NARROW_WEIGHT


def _has_narrow_activations(scheme: Scheme) -> bool:
    """Return whether activations are integers of 8 bits or fewer."""
    activation = scheme.format(scheme.activation)
    return activation is not None and activation.is_integer and activation.bits <= _NARROW_BITS


def _has_narrow_weights(scheme: Scheme) -> bool:
    weight = scheme.format(scheme.weight)
    return weight is not None and weight.is_integer and weight.bits <= _NARROW_BITS
