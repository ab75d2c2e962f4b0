"""The steps of quantizing a float model, from the graph as it was loaded to the graph as it is saved."""

from __future__ import annotations

from collections import Counter
from functools import cache

import onnx_graphsurgeon as gs

from transforms.align_concat import align_concat
from transforms.channels.apply_moves import apply_moves
from transforms.channels.balance_channels import balance_channels
from transforms.channels.equalize_layers import equalize_layers
from transforms.conversion import inspect_bf16
from transforms.conversion.prepare import note_mended, prepare
from transforms.conversion.record import Record
from transforms.dual_quant_nodes import dual_quant_nodes
from transforms.fix_shapes import fix_shapes
from transforms.fold_relu import fold_relu
from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product
from transforms.graph.selection import label_of
from transforms.graph.some_names import counted, some_names
from transforms.graph.stored_rows import reads_rows
from transforms.insert_qdq import insert_qdq, raise_opset
from transforms.lift_constants import lift_constants
from transforms.lower_opset import lower_opset
from transforms.model import provenance
from transforms.model.read_model import ModelError
from transforms.narrow_indices import narrow_indices
from transforms.part_biases import part_biases
from transforms.plan.qparams import Ranges
from transforms.plan.quant_spec import QUANTIZED_BY, TABLE, WEIGHT
from transforms.plan.quantization_plan import QuantizationPlan, saturated_constants
from transforms.plan.rows_writer import FOLDING
from transforms.plan.scheme_targets import FormatTable, SchemeTargets, Targets
from transforms.plan.stored_tables import stored_tables
from transforms.plan.weight_cache import WeightMemory
from transforms.qdq_to_cast import qdq_to_cast
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
from transforms.scheme.scheme import AUTO
from transforms.scheme.targets import ON_CPU
from transforms.write_dynamic_lstm import write_dynamic_lstm
from transforms.write_out_axes import write_out_axes

EQUALIZED = "pairs of layers equalized"
SCALED = "tensors with channels scaled between layers"
MOVED = "tensors with outliers moved into weights"

_ALIGNED = "Concats on one scale"

_WIDE_ACTIVATION, _NARROW_WEIGHT = 16, 8  # bits
_NARROW_BITS = 8

_IN_INTEGERS = frozenset(
    {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QGemm", "DynamicQuantizeMatMul"}
    | {"MatMulIntegerToFloat", "QAttention", "DynamicQuantizeLSTM", "MatMulNBits"}
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
    _note_bodies(plan, done)
    _note_whole(plan, done)
    _note_infinite(plan, done)
    _note_widened(plan, done)
    _note_routers(plan, done)
    _note_finer(plan, done)
    if plan.scheme.align_concat == AUTO and ranges is not None:
        done.changes[_ALIGNED] = plan.settle(ranges.extremes())
    tables = stored_tables(plan)  # as long as nodes are those that the scheme speaks of
    insert_qdq(plan, ranges, memory=memory, grids=done.grids)
    if count := quantize_tables(plan.graph, tables, memory):
        done.tensors[TABLE_FORMAT, TABLE] = count


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
        if _has_narrow_activations(scheme):
            done.changes["LSTMs that quantize inputs and states in every step"] = write_dynamic_lstm(graph)
    _note_recurrent(graph, done)
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
    done.changes.update({f"{op} put together": count for op, count in prepared.fused.items()})
    if any(fmt.name == "bfloat16" for fmt in (*scheme.named_formats, scheme.other_format) if fmt):
        saturated: list[str] = []
        done.changes["weights saturated at +-3.38953139e38"] = saturate(
            graph, exclude=targets.excluded, names=saturated
        )
        done.notes += [f"Saturated at +-3.38953139e38: {some_names(saturated)}"] if saturated else []
    leave_out_biases(graph)  # of what was put together or taken apart meanwhile, too
    done.changes["biases with masks, added after the layer"] = _part_biases(graph, scheme, targets)
    if scheme.equalize_layers is True:
        equalize(graph, targets, done)
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
    activation = scheme.format(scheme.activation)
    is_float = activation is None or (activation.is_float and scheme.weight == scheme.activation)
    return is_float and not scheme.auto_mixed_precision


def _part_biases(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets) -> int:
    """Part the biases that may become integers; formats are looked at where masks are found."""
    mixes = bool(scheme.auto_mixed_precision) and any(fmt.is_integer for fmt in scheme.named_formats)
    table = cache(lambda: FormatTable(graph, scheme, targets.resolve_in(graph)))
    return part_biases(graph, lambda node: mixes or table()[node].wants_grids)


def equalize(graph: gs.Graph, targets: SchemeTargets, done: Record) -> None:
    """Equalize the layers that are not excluded."""
    done.changes[EQUALIZED] = equalize_layers(graph, exclude=targets.excluded)


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


def _note_whole(plan: QuantizationPlan, done: Record) -> None:
    """Say how many weights have no blocks though the scheme asks for them."""
    size = plan.scheme.block_size
    weights = [quantization for quantization in plan.quantizations if quantization.role == WEIGHT]
    whole = sum(one.steps[-1].needs_range and not one.steps[-1].block for one in weights)
    if size and whole:
        count = counted(whole, "weight")
        what = "per channel" if plan.scheme.per_channel else "for each weight"
        done.notes.append(f"One scale {what}, no blocks of {size}: {count}, sums too short or in groups")


def _note_widened(plan: QuantizationPlan, done: Record) -> None:
    """Say which weights have 4 bits in place of 2."""
    if names := plan.specs.widened:
        reason = "2 are computed wrongly by ONNX Runtime unless 4 divides the outputs of a layer"
        done.notes.append(f"4 bits in place of 2: {some_names(names)}; {reason}")


def _note_routers(plan: QuantizationPlan, done: Record) -> None:
    """Say which routers of experts have more bits than other layers."""
    if found := plan.specs.formats.routers:
        weight = plan.specs.formats[found[0]].weight
        names = some_names([label_of(node) for node in found])
        bits = "in float" if weight is None else f"in {weight.name}"
        done.notes.append(f"Weights {bits} that choose experts: {names}; layers entries change that")


def _note_finer(plan: QuantizationPlan, done: Record) -> None:
    """Say which sensitive layers have more bits than others."""
    if found := plan.specs.formats.finer:
        names, share = some_names([label_of(node) for node in found]), f"{plan.scheme.finer_share:.3g}"
        done.notes.append(f"Weights in int8 that gain most for their bytes: {names}; finer_share={share}")


def _note_recurrent(graph: gs.Graph, done: Record) -> None:
    """Say that recurrent layers whose weights are stored in fewer bits take as long as before."""
    if ops := Counter(node.op for node in walk.nodes(graph) if reads_rows(node)):
        names = ", ".join(f"{op} {count}" for op, count in ops.most_common())
        done.notes.append(f"Weights alone in fewer bits, time as in float: {names}")


def _note_infinite(plan: QuantizationPlan, done: Record) -> None:
    """Note constants that a float type saturates, and tensors kept in float32 for their infinities."""
    if names := saturated_constants(plan):
        done.notes.append(f"Saturated at +-65504: {some_names(names)}")
    if names := plan.specs.infinite:
        done.notes.append(f"Kept in float32, where an infinity means something: {some_names(names)}")


def _note_bodies(plan: QuantizationPlan, done: Record) -> None:
    """Say how many layers stay float because nothing is measured inside bodies."""
    main = {id(node) for node in plan.graph.nodes}
    left = [
        node
        for node in walk.nodes(plan.graph)
        if id(node) not in main and is_dot_product(node) and plan.specs.formats[node].wants_integers
    ]
    if left:
        layers = counted(len(left), "layer")
        done.notes.append(f"Kept in float inside If, Loop or Scan: {layers}, ranges are not measured there")
