"""Quantizing a float model: every step from the graph as it was loaded to the graph as it is saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate import Progress
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.calibrate.calibration import Calibration, options_of
from transforms.choose_ranges.choose import Chosen, choose_settings
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.unsuited_tensors import unsuited_tensors
from transforms.choose_ranges.work import too_large
from transforms.graph.dot_products import is_dot_product
from transforms.graph.lazy_values import is_weightless
from transforms.insert_qdq import insert_qdq
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.give_all_codes import give_all_codes, samples_for_codes
from transforms.pipelines.measure_biases import BiasSamples
from transforms.pipelines.prepare import note_mended
from transforms.pipelines.proposed_rewrites import proposer
from transforms.pipelines.quantize_steps import (
    Quantized,
    finish_nodes,
    make_plan,
    move_named_outliers,
    prepare_for,
    write_plan,
)
from transforms.pipelines.settle_outliers import Quantize, settle_outliers
from transforms.plan.guarded_nan import guarded_nan, kept_for_nan
from transforms.plan.quant_spec import BIAS
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import SchemeTargets
from transforms.plan.tensor_grids import FixedGrids
from transforms.plan.weight_cache import WeightMemory
from transforms.run.mend_shapes import mend_shapes
from transforms.runtime.product_threads import products_on_one_thread
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.scheme_values import OFF

__all__ = ["Quantized", "finish_nodes", "make_plan", "prepare_for", "quantize_graph", "write_plan"]


@products_on_one_thread()
def quantize_graph(
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData | None = None,
    *,
    progress: Progress | None = None,
    keep_float: bool = False,
    keep_grids: bool = False,
    fixed: FixedGrids | None = None,
) -> Quantized:
    """Quantize a float model in place.

    Optimizes it as the conversions to BF16 do, brings channels to like ranges where the scheme says so,
    plans (:mod:`transforms.plan.quantization_plan`), measures ranges on the data where the plan needs them,
    and writes the plan down. ``progress`` is called as by :func:`transforms.calibrate.calibrate.calibrate`.
    ``keep_float`` keeps a copy of the float model as it was quantized, in the result, and ``keep_grids`` the
    grids of tensors, for which weights are read once more. Tensors in ``fixed`` have the grids that it gives;
    what a scheme leaves to the outputs follows rules then, for settings are compared with grids of their own.

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
    done = Quantized(grids=[] if keep_grids else None)
    if fixed:
        scheme = scheme.by_rule().with_(move_outliers=False)
    scheme = scheme.with_(equalize_layers=scheme.equalizes_by_rule)
    targets = prepare_for(graph, scheme, done)
    if data is not None and (feeds := data.feeds(graph)).is_repeatable:
        mend_shapes(graph, (feed for _, feed in feeds), data.run)
        note_mended(graph, done.notes)
    codes, samples = scheme.all_codes, samples_for_codes(graph, scheme, data, done)
    if samples is not None and data is not None:
        data = replace(data, source=samples.feeds)
    scheme = scheme.with_(all_codes=OFF)  # until ranges are known
    targets.fixed = fixed or FixedGrids()
    memory = _weights_of(graph, scheme)
    biases = BiasSamples(graph, scheme, data)
    data = biases.data
    moved = _choose_moves(graph, scheme, targets, data, done, memory)
    scheme, plan = moved.scheme, moved.plan
    memory = memory if plan is not None else _weights_of(graph, scheme)
    chosen = _choose(graph, moved, targets, data, done, progress, memory)
    calibration, scheme = chosen.calibration, chosen.scheme
    targets = targets.naming(graph, scheme)
    biases.take(graph, chosen.spare)
    float_graph = copy_graph(graph) if keep_float or biases.feeds or samples is not None else None
    done.float_graph = float_graph if keep_float else None
    if plan is not None and calibration is None and plan.scheme == scheme:
        done.changes.update(moved.planned.changes)
    else:
        plan = make_plan(graph, scheme, targets.resolve_in(graph), done)
    if calibration is None:
        halved = samples is not None  # shifts look at what ends differ
        calibration = calibrate_plan(plan, data, progress=progress, halved=halved, most=0 if halved else None)
        calibration = calibration and calibration.with_(options_of(scheme))
    scheme, plan = _without_guarded_nan(plan, targets, calibration, done)
    if calibration is not None:
        done.calibrated = len(calibration.observed)
    elif data is not None:
        why = "those that are needed are given" if fixed else "the formats of this scheme need none"
        done.notes.append(f"No ranges measured: {why}")
    if fixed:
        done.notes.append(_used(plan, fixed))
    write_plan(plan, calibration, done, memory)
    finish_nodes(graph, scheme, done)
    done.scheme = scheme.with_(all_codes=codes)
    if samples is not None and data is not None and float_graph is not None and calibration is not None:
        give_all_codes(graph, float_graph, samples, calibration, codes, data.run, done, chosen.floats)
    biases.settle(graph, float_graph, done)
    return done


def _weights_of(graph: gs.Graph, scheme: Scheme) -> WeightMemory | None:
    """Return a memory of the weights of a graph that its copies share; None if nothing is chosen or tried."""
    if not (scheme.is_open or scheme.move_outliers) or too_large(graph):
        return None
    layers = (node for node in graph.nodes if is_dot_product(node))
    weights = (tensor for node in layers for tensor in node.inputs if isinstance(tensor, gs.Constant))
    return WeightMemory(tensor.values for tensor in weights if not is_weightless(tensor._values))


def _by_rule(
    ruled: Scheme, targets: SchemeTargets, data: CalibrationData, memory: WeightMemory | None = None
) -> Quantize:
    """Return what quantizes a copy of a prepared graph by a scheme of rules, with ranges from some feeds."""

    def _quantize(copy: gs.Graph, feeds: list[Feed]) -> None:
        plan = make_plan(copy, ruled, targets.resolve_in(copy), Quantized())
        insert_qdq(plan, calibrate_plan(plan, CalibrationData(feeds, run=data.run)), memory=memory)

    return _quantize


@dataclass(frozen=True)
class _Moved:
    """The scheme that says which outliers were moved, and how many models were ``searched`` for them.

    ``floats``: runs of the float model on some samples. Without moves, the plan of the graph by the
    rules, with what it ``planned`` to change.
    """

    scheme: Scheme
    plan: QuantizationPlan | None = None
    planned: Quantized = field(default_factory=Quantized)
    searched: int = 0
    floats: FloatRuns | None = None


def _choose_moves(
    graph: gs.Graph,
    scheme: Scheme,
    targets: SchemeTargets,
    data: CalibrationData | None,
    done: Quantized,
    memory: WeightMemory | None,
) -> _Moved:
    """Move outliers of a prepared graph if its outputs get better."""
    planned = Quantized()
    if not scheme.move_outliers or scheme.outliers or data is None or not data.decides:
        return _Moved(scheme)
    ruled = scheme.by_rule()
    plan = make_plan(graph, ruled, targets.resolve_in(graph), planned)
    quantize = _by_rule(ruled, targets, data, memory)
    settled = settle_outliers(
        plan,
        lambda: data.feeds(graph),
        quantize,
        data.run,
        exclude=targets.excluded,
    )
    if not settled.moves:
        return _Moved(scheme, plan, planned, settled.models, settled.floats)
    chosen = scheme.with_(outliers={name: str(move) for name, move in settled.moves.items()})
    move_named_outliers(graph, chosen, targets, done)
    return _Moved(chosen, searched=settled.models, floats=settled.floats)


def _without_guarded_nan(
    plan: QuantizationPlan, targets: SchemeTargets, calibration: Calibration | None, done: Quantized
) -> tuple[Scheme, QuantizationPlan]:
    """Return the scheme and the plan in which tensors stay float that held NaN which the model looks for."""
    scheme, graph = plan.scheme, plan.graph
    names = guarded_nan(plan, calibration.holding_nan) if calibration else []
    if not names:
        return scheme, plan
    done.notes.append(kept_for_nan(names))
    scheme = scheme.with_(tensors={**scheme.tensors, **dict.fromkeys(names, FLOAT32)})
    return scheme, make_plan(graph, scheme, targets.naming(graph, scheme).resolve_in(graph), done)


def _used(plan: QuantizationPlan, fixed: FixedGrids) -> str:
    """Return the words on how many grids a plan takes; ValueError if it takes none."""
    sites = [(site, step) for site in plan.quantizations for step in site.steps if step.needs_range]
    grids = [(site.tensor, plan.grid(site, step)) for site, step in sites if site.role != BIAS]
    given = [(tensor, grid) for tensor, grid in grids if grid]
    if not given:
        raise ValueError(
            f"none of the {len(fixed)} grids given is of a tensor that this scheme makes integers"
        )
    tensors, used = {id(tensor) for tensor, _ in given}, {id(grid) for _, grid in given}
    others = [f"'{one.name}' in {one.format or f'{one.bits} bits'}" for one in fixed if id(one) not in used]
    unused = f"; not used: {', '.join(others[:3])}{', ...' if others[3:] else ''}" if others else ""
    return f"Ranges as given: {len(tensors)} tensors, of {len(fixed)} grids in the file{unused}"


def _choose(
    graph: gs.Graph,
    moved: _Moved,
    targets: SchemeTargets,
    data: CalibrationData | None,
    done: Quantized,
    progress: Progress | None,
    memory: WeightMemory | None,
) -> Chosen:
    """Return a scheme with nothing left open, and ranges if they were measured to choose it."""
    scheme, known = moved.scheme, moved.plan
    done.scheme = scheme.by_rule() if scheme.is_open else scheme.with_(keep_float=False)
    if data is None or not data.decides:
        return Chosen(done.scheme)

    def _plan_of(variant: gs.Graph, changed: Scheme) -> QuantizationPlan:
        if known is not None and variant is known.graph and changed == known.scheme:
            return known
        named = targets if changed.tensors == scheme.tensors else targets.naming(graph, changed)
        return make_plan(variant, changed, named.resolve_in(variant), Quantized())

    chosen = Chosen(done.scheme)
    if scheme.is_open:
        propose = proposer(graph, scheme, targets)
        choose = partial(choose_settings, propose=propose, progress=progress)
        searched, floats = moved.searched, moved.floats
        chosen = choose(graph, scheme, _plan_of, data, memory=memory, searched=searched, known=floats)
    if chosen.calibration is None and scheme.keep_float:
        chosen = chosen.keeping(unsuited_tensors(graph, chosen.scheme, _plan_of, data))
    if chosen.candidate is not None and chosen.candidate.rewrite is not None:
        done.changes[chosen.candidate.label] = chosen.candidate.rewrite(graph)
    done.scheme, done.choice = chosen.scheme, chosen.note
    done.notes += [] if chosen.kept is None else [str(chosen.kept)]
    return chosen
