"""The rows that bring a float model into the form that a scheme quantizes.

Every computed number stays the same, up to rounding in float32 and factors between layers.
"""

from __future__ import annotations

from functools import cache

import onnx_graphsurgeon as gs

from transforms.conversion.quantized_already import why_quantized
from transforms.conversion.record import MASKED, Record
from transforms.conversion.rewriting import Rewriting, Rewritten
from transforms.conversion.rows import Row, run_rows
from transforms.conversion.standard_form import STANDARD, note_mended
from transforms.graph.some_names import some_names
from transforms.insert_qdq import raise_opset
from transforms.model.read_model import ModelError
from transforms.plan.exact_sums import orders_channels
from transforms.plan.scheme_targets import FormatTable, SchemeTargets
from transforms.runtime_workarounds import leave_out_biases
from transforms.saturate import saturate, tensors_with_nan
from transforms.scheme import Scheme

EQUALIZED = "pairs of layers equalized"
ROTATED = "weights with rotated channels"
SCALED = "tensors with channels scaled between layers"
MOVED = "tensors with outliers moved into weights"

_WIDE_ACTIVATION, _NARROW_WEIGHT = 16, 8  # bits


def prepare_for(graph: gs.Graph, scheme: Scheme, done: Record | None = None) -> SchemeTargets:
    """Bring a float model into the form that a scheme quantizes, in place; return the scheme's targets.

    Raises as :func:`transforms.pipelines.quantize_graph.quantize_graph` does.
    """
    rewriting = Rewriting(graph, scheme, Record() if done is None else done)
    run_rows(rewriting, PREPARE)
    return rewriting.named


def lift_constants(work: Rewritten) -> int:
    """Turn Constant nodes into constants."""
    from transforms.lift_constants import lift_constants

    return lift_constants(work.graph)


def refuse_quantized(work: Rewritten) -> int:
    """Raise ModelError for a model with quantized values; metadata record those that left no node."""
    if why := why_quantized(work.graph):
        raise ModelError(f"the model is quantized already{why}")
    return 0


def fix_inputs(work: Rewritten) -> None:
    """Fix the free dimensions of inputs for which the scheme has sizes."""
    from transforms.fix_shapes import fix_shapes

    fix_shapes(work.graph, work.scheme.input_shapes)


def write_out_axes(work: Rewritten) -> int:
    """Rewrite Pad, Resize and CenterCropPad without axes."""
    from transforms.write_out_axes import write_out_axes

    return write_out_axes(work.graph)


def lower_to_opset(work: Rewritten) -> None:
    """Lower the graph to the opset of the scheme."""
    from transforms.lower_opset import lower_opset

    lower_opset(work.graph, work.scheme.opset)


def name_targets(work: Rewritten) -> int:
    """Resolve the nodes and tensors that the scheme names."""
    work.targets = SchemeTargets(work.graph, work.scheme)
    return 0


def leave_out_idle_biases(work: Rewritten) -> int:
    """Remove biases that Gemms do not use."""
    return leave_out_biases(work.graph)


def refuse_nan(work: Rewritten) -> int:
    """Raise ModelError for NaN in weights."""
    if unknown := tensors_with_nan(work.graph):
        raise ModelError(
            f"NaN in {len(unknown)} weights, '{unknown[0]}' the first: no format can stand for it"
        )
    return 0


def saturate_weights(work: Rewritten) -> int:
    """Saturate weights beyond the largest number of bfloat16."""
    saturated: list[str] = []
    count = saturate(work.graph, exclude=work.exclude, names=saturated)
    work.record.notes += [f"Saturated at +-3.38953139e38: {some_names(saturated)}"] if saturated else []
    return count


def part_masked_biases(work: Rewritten) -> int:
    """Separate masks from biases that may become integers; formats are resolved only if there are masks."""
    from transforms.part_biases import part_biases

    graph, scheme, targets = work.graph, work.scheme, work.named
    mixes = bool(scheme.auto_mixed_precision) and any(fmt.is_integer for fmt in scheme.named_formats)
    table = cache(lambda: FormatTable(graph, scheme, targets.resolve_in(graph)))
    return part_biases(graph, lambda node: mixes or table()[node].wants_grids)


def order_channels(work: Rewritten) -> int:
    """Reorder channels so that 8-bit sums saturate less."""
    from transforms.order_channels import order_channels

    return order_channels(work.graph, exclude=work.exclude)


def equalize(work: Rewritten) -> int:
    """Equalize the layers that are not excluded."""
    from transforms.equalize_layers import equalize_layers

    return equalize_layers(work.graph, exclude=work.exclude)


def rotate(work: Rewritten) -> int:
    """Rotate the channels of the states of language models."""
    from transforms.rotate_channels import rotate_channels

    return rotate_channels(work.graph)


def balance_channels(work: Rewritten) -> int:
    """Scale channels of layers to similar ranges, by a Mul before them."""
    from transforms.balance_channels import balance_channels

    scheme = work.scheme
    formats = scheme.format(scheme.activation), scheme.format(scheme.weight)
    has_blocks, outliers = any(fmt.block > 1 for fmt in formats if fmt), _has_headroom_for_outliers(scheme)
    return balance_channels(work.graph, depthwise=has_blocks, outliers=outliers, exclude=work.exclude)


def move_named_outliers(work: Rewritten) -> None:
    """Move the outliers that the scheme names; ValueError for a tensor without movable outliers."""
    from transforms.channels.apply_moves import apply_moves

    moves = {name: work.scheme.outlier_move(name) for name in work.scheme.outliers}
    labels = {"moved": MOVED, "scaled": SCALED}
    found = apply_moves(work.graph, moves, exclude=work.exclude)
    work.record.changes.update({labels[what]: count for what, count in found.items()})


def raise_to_formats(work: Rewritten) -> None:
    """Raise the graph to the opset that the formats of the scheme need."""
    raise_opset(work.graph, work.scheme)
    note_mended(work.graph, work.record.notes)


_NAMED = {"targets": "name_targets"}
_BEFORE_NAMES = ("lift_constants", "fix_inputs", "write_out_axes", "lower_to_opset")
_FORMED = ("refuse_nan", *dict.fromkeys(row.name for row in STANDARD))

LEAVE_OUT_BIASES: Row[Rewritten] = Row(leave_out_idle_biases, frozenset({"Gemm"}))
EQUALIZE: Row[Rewritten] = Row(
    equalize,
    when=lambda work: work.scheme.equalize_layers is True,
    needs=_NAMED,
    after=("order_channels",),
    line=EQUALIZED,
)
ROTATE: Row[Rewritten] = Row(
    rotate, when=lambda work: bool(work.scheme.rotate_channels), after=("equalize",), line=ROTATED
)
MOVE_OUTLIERS: Row[Rewritten] = Row(
    move_named_outliers,
    when=lambda work: bool(work.scheme.outliers),
    needs=_NAMED,
    after=("equalize", "rotate", "balance_channels"),
)

PREPARE: tuple[Row[Rewritten], ...] = (
    Row(lift_constants, frozenset({"Constant"})),
    Row(refuse_quantized, needs={"graph": "load"}),
    Row(fix_inputs, when=lambda work: bool(work.scheme.input_shapes)),
    Row(
        write_out_axes, frozenset({"Pad", "Resize", "CenterCropPad"}), after=("lift_constants", "fix_inputs")
    ),
    Row(lower_to_opset, when=lambda work: bool(work.scheme.opset), after=("write_out_axes",)),
    Row(name_targets, after=_BEFORE_NAMES),
    LEAVE_OUT_BIASES,
    Row(refuse_nan, after=("lift_constants", "leave_out_idle_biases")),
    *STANDARD,
    Row(
        saturate_weights,
        when=lambda work: _names_bfloat16(work.scheme),
        needs=_NAMED,
        after=_FORMED,
        line="weights saturated at +-3.38953139e38",
    ),
    LEAVE_OUT_BIASES,  # of nodes that were merged or split meanwhile
    Row(
        part_masked_biases,
        frozenset({"Conv", "ConvTranspose", "Gemm"}),
        needs=_NAMED,
        after=_FORMED,
        line=MASKED,
    ),
    Row(  # before anything that refers to channels by number
        order_channels,
        when=lambda work: orders_channels(work.scheme),
        needs=_NAMED,
        after=("part_masked_biases",),
        line="groups of channels in an order in which sums saturate less",
    ),
    EQUALIZE,
    ROTATE,
    Row(
        balance_channels,
        when=lambda work: work.scheme.balance_channels,
        needs=_NAMED,
        after=("equalize", "rotate"),
        line="layers balanced by a Mul in front",
    ),
    MOVE_OUTLIERS,
    Row(raise_to_formats, after=(*_FORMED, "move_named_outliers", "balance_channels")),
)
"""From the loaded graph to the one whose tensors get formats."""


def _names_bfloat16(scheme: Scheme) -> bool:
    formats = (*scheme.named_formats, scheme.other_format)
    return any(fmt.name == "bfloat16" for fmt in formats if fmt)


def _has_headroom_for_outliers(scheme: Scheme) -> bool:
    activation, weight = scheme.format(scheme.activation), scheme.format(scheme.weight)
    if activation is None or weight is None or not (activation.is_integer and weight.is_integer):
        return False
    return activation.bits >= _WIDE_ACTIVATION and weight.bits <= _NARROW_WEIGHT
