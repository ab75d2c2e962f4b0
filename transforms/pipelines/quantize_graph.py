"""Quantizing a float model: every step from the graph as it was loaded to the graph as it is saved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.align_scales import align_concat
from transforms.balance_channels import balance_channels
from transforms.calibrate.calibrate import Progress
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.dual_quant_nodes import dual_quant_nodes
from transforms.equalize_layers import equalize_layers
from transforms.fix_shapes import fix_shapes
from transforms.fold_relu import fold_relu
from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product
from transforms.insert_qdq import insert_qdq, raise_opset
from transforms.leave_out_dilations import leave_out_dilations
from transforms.leave_out_zero_points import leave_out_zero_points
from transforms.lift_constants import lift_constants
from transforms.lower_opset import lower_opset
from transforms.model import provenance
from transforms.model.copy_graph import copy_graph
from transforms.model.read_model import ModelError
from transforms.move_outliers import move_outliers
from transforms.pipelines import inspect_bf16
from transforms.pipelines.prepare import prepare
from transforms.pipelines.settle_outliers import settle_outliers
from transforms.plan.qparams import Ranges
from transforms.plan.quant_spec import QUANTIZED_BY, WEIGHT
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import SchemeTargets, Targets
from transforms.plan.weight_cache import WeightMemory
from transforms.qdq_to_cast import qdq_to_cast
from transforms.quantize_before_relu import quantize_before_relu
from transforms.saturate import saturate, tensors_with_nan
from transforms.scheme import Scheme

_WIDE_ACTIVATION, _NARROW_WEIGHT = 16, 8  # bits

_IN_INTEGERS = frozenset(
    {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QGemm", "DynamicQuantizeMatMul"}
    | {"MatMulIntegerToFloat", "QAttention", "DynamicQuantizeLSTM", "MatMulNBits"}
)
"""Operators beside those of the name QLinear... that compute with quantized numbers, also of ONNX Runtime."""


@dataclass
class Quantized:
    """The result: tensors quantized by format and role, the changes of each step, and notes.

    ``scheme``: the scheme with what was chosen on samples; it makes the same model of these samples again.
    ``float_graph``: the float model as it was quantized, if that was to be kept.
    """

    tensors: Counter[tuple[str, str]] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    calibrated: int = 0
    scheme: Scheme | None = None
    float_graph: gs.Graph | None = None

    @property
    def count(self) -> int:
        """The number of quantized tensors."""
        return sum(self.tensors.values())


def quantize_graph(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None = None,
    *,
    progress: Progress | None = None,
    keep_float: bool = False,
) -> Quantized:
    """Quantize a float model in place.

    Optimizes it as the conversions to BF16 do, brings channels to like ranges where the scheme says so,
    plans (:mod:`transforms.plan.quantization_plan`), measures ranges on the data where the plan needs them,
    and writes the plan down. ``progress`` is called as by :func:`transforms.calibrate.calibrate.calibrate`.
    ``keep_float`` keeps a copy of the float model as it was quantized in the result.

    Fine-tuning is another step, :func:`transforms.finetune.finetune_model.finetune_model`: a scheme that asks
    for it is refused here. So is one that asks for mixed precision, which is
    :func:`transforms.mix_precision.mix_precision`.

    Raises ModelError for a model that is quantized already, ValueError for unknown names, formats that a
    tensor cannot have, NaN in weights, and data that are missing or do not fit; OSError if data cannot be
    read. On error the graph is left in an undefined state.
    """
    if scheme.finetune:
        raise ValueError("the scheme asks for fine-tuning, which is a step of its own: finetune_model")
    if scheme.auto_mixed_precision:
        step = "transforms.mix_precision.mix_precision"
        raise ValueError(f"the scheme asks for mixed precision, which is a step of its own: {step}")
    done = Quantized()
    targets = prepare_for(graph, scheme, done)
    scheme = _choose_moves(graph, scheme, targets, data, done)
    done.scheme = scheme
    done.float_graph = copy_graph(graph) if keep_float else None
    plan = make_plan(graph, scheme, targets.resolve_in(graph), done)
    calibration = calibrate_plan(plan, data, progress=progress)
    if calibration is not None:
        done.calibrated = len(calibration.observed)
    elif data is not None:
        done.notes.append("No ranges measured: the formats of this scheme need none")
    write_plan(plan, calibration, done)
    finish_nodes(graph, scheme, done)
    return done


def _choose_moves(
    graph: gs.Graph,
    scheme: Scheme,
    targets: SchemeTargets,
    data: CalibrationData | None,
    done: Quantized,
) -> Scheme:
    """Move outliers of a prepared graph if its outputs get better; return the scheme that says which."""
    if not scheme.move_outliers or scheme.outliers or data is None:
        return scheme

    def _quantize(copy: gs.Graph, feeds: list[Feed]) -> None:
        plan = make_plan(copy, scheme, targets.resolve_in(copy), Quantized())
        insert_qdq(plan, calibrate_plan(plan, CalibrationData(feeds, run=data.run)))

    plan = make_plan(graph, scheme, targets.resolve_in(graph), Quantized())
    moves = settle_outliers(plan, lambda: data.feeds(graph), _quantize, data.run)
    chosen = scheme.with_(outliers={name: str(move) for name, move in moves.items()})
    _move_outliers(graph, chosen, targets, done)
    return chosen


def make_plan(graph: gs.Graph, scheme: Scheme, targets: Targets, done: Quantized) -> QuantizationPlan:
    """Return the plan for a prepared graph, with shared ranges and borders as the scheme wants them."""
    plan = QuantizationPlan(graph, scheme, targets)
    if scheme.align_concat:
        done.changes["Concats on one scale"] = align_concat(plan)
    if scheme.dual_quant_nodes:
        done.changes["tensors quantized twice, at borders of formats"] = dual_quant_nodes(plan)
    return plan


def write_plan(
    plan: QuantizationPlan, ranges: Ranges | None, done: Quantized, memory: WeightMemory | None = None
) -> None:
    """Write a plan into its graph; ``memory`` is that of several plans of one model."""
    done.tensors = Counter(
        (quantization.steps[-1].format.name, quantization.role) for quantization in plan.quantizations
    )
    _note_bodies(plan, done)
    _note_whole(plan, done)
    insert_qdq(plan, ranges, memory=memory)


def finish_nodes(graph: gs.Graph, scheme: Scheme, done: Quantized) -> None:
    """Do with the nodes of a quantized graph what the scheme wants done with them."""
    if scheme.fold_relu:
        done.changes["Relus and Clips folded into quantizations"] = fold_relu(graph)
    if scheme.quantize_before_relu:
        done.changes["Relus and Clips with a quantization in front"] = quantize_before_relu(graph)
    if scheme.bfloat16_as == "cast":
        qdq_to_cast(graph)
    leave_out_zero_points(graph)
    leave_out_dilations(graph)


def prepare_for(graph: gs.Graph, scheme: Scheme, done: Quantized | None = None) -> SchemeTargets:
    """Bring a float model into the form that a scheme quantizes, in place; return what the scheme names.

    Every number that it computes stays the same, up to rounding in float32 and factors between layers. Raises
    as :func:`quantize_graph` does.
    """
    lift_constants(graph)
    _refuse_quantized(graph)
    fix_shapes(graph, scheme.input_shapes)
    if scheme.opset:
        lower_opset(graph, scheme.opset)
    targets = SchemeTargets(graph, scheme)
    _prepare(graph, scheme, targets, Quantized() if done is None else done)
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


def _prepare(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets, done: Quantized) -> None:
    names = tensors_with_nan(graph)
    if names:
        raise ModelError(f"NaN in {len(names)} weights, '{names[0]}' the first: no format can stand for it")
    prepared = prepare(graph, targets.excluded, optimized=scheme.optimize, newest=scheme.opset)
    done.notes += prepared.notes
    done.changes.update({f"{op} put together": count for op, count in prepared.fused.items()})
    if any(fmt.name == "bfloat16" for fmt in (*scheme.named_formats, scheme.other_format) if fmt):
        done.changes["weights saturated at +-3.38953139e38"] = saturate(graph, exclude=targets.excluded)
    if scheme.equalize_layers:
        excluded = targets.excluded
        done.changes["pairs of layers equalized"] = equalize_layers(graph, exclude=excluded)
    if scheme.balance_channels:
        own = scheme.format(scheme.activation), scheme.format(scheme.weight)
        done.changes["layers balanced by a Mul in front"] = balance_channels(
            graph,
            depthwise=any(fmt.block > 1 for fmt in own if fmt),
            outliers=_has_room_for_outliers(scheme),
            exclude=targets.excluded,
        )
    _move_outliers(graph, scheme, targets, done)
    raise_opset(graph, scheme)


def _move_outliers(graph: gs.Graph, scheme: Scheme, targets: SchemeTargets, done: Quantized) -> None:
    """Move the outliers that the scheme names; ValueError for a tensor of which nothing can be moved."""
    for name in scheme.outliers:
        if not move_outliers(graph, {name: scheme.outlier_move(name)}, exclude=targets.excluded):
            raise ValueError(f"outliers entry '{name}' is no tensor that layers multiply with a matrix")
    if scheme.outliers:
        done.changes["tensors with outliers moved into weights"] = len(scheme.outliers)


def _has_room_for_outliers(scheme: Scheme) -> bool:
    activation, weight = scheme.format(scheme.activation), scheme.format(scheme.weight)
    if activation is None or weight is None or not (activation.is_integer and weight.is_integer):
        return False
    return activation.bits >= _WIDE_ACTIVATION and weight.bits <= _NARROW_WEIGHT


def _note_whole(plan: QuantizationPlan, done: Quantized) -> None:
    """Say how many weights have no blocks though the scheme asks for them."""
    size = plan.scheme.block_size
    weights = [quantization for quantization in plan.quantizations if quantization.role == WEIGHT]
    whole = sum(one.steps[-1].needs_range and not one.steps[-1].block for one in weights)
    if size and whole:
        count = "1 weight" if whole == 1 else f"{whole} weights"
        what = "per channel" if plan.scheme.per_channel else "for each weight"
        done.notes.append(f"One scale {what}, no blocks of {size}: {count}, sums too short or in groups")


def _note_bodies(plan: QuantizationPlan, done: Quantized) -> None:
    """Say how many layers stay float because nothing is measured inside bodies."""
    main = {id(node) for node in plan.graph.nodes}
    left = [
        node
        for node in walk.nodes(plan.graph)
        if id(node) not in main and is_dot_product(node) and plan.specs.formats[node].wants_integers
    ]
    if left:
        layers = "1 layer" if len(left) == 1 else f"{len(left)} layers"
        done.notes.append(f"Kept in float inside If, Loop or Scan: {layers}, ranges are not measured there")
