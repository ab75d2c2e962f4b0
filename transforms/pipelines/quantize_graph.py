"""Quantizing a float model: every step from the graph as it was loaded to the graph as it is saved."""

from __future__ import annotations

from itertools import chain, islice

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate import Progress
from transforms.calibrate.calibrate_plan import CalibrationData, MissingDataError, calibrate_plan
from transforms.calibrate.calibration import Calibration, options_of
from transforms.graph import walk
from transforms.judge.constants import SEARCHED_ON
from transforms.model.copy_graph import copy_graph
from transforms.moves.full_range import try_full_range
from transforms.pipelines.build import build, shift
from transforms.pipelines.decide import Decided, decide
from transforms.pipelines.output_weights import LayerProgress, fit_output_weights
from transforms.pipelines.prepare import note_mended
from transforms.pipelines.quantize_steps import (
    Quantized,
    equalize,
    finish_nodes,
    make_plan,
    move_named_outliers,
    plan_of,
    prepare_for,
    write_plan,
)
from transforms.plan.quant_spec import BIAS
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.sampled_exceptions import (
    fed_masks,
    kept_in_float,
    masked_by,
    of_zeros,
    without_range,
    zero_inputs,
)
from transforms.plan.scheme_targets import SchemeTargets
from transforms.plan.tensor_grids import FixedGrids
from transforms.run.feeds import Feeds
from transforms.run.mend_shapes import mend_shapes
from transforms.run.run_each import products_on_one_thread
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.scheme_values import FEW_BITS, OFF
from transforms.scheme.sources import scheme_of

__all__ = ["Quantized", "finish_nodes", "make_plan", "prepare_for", "quantize_graph", "write_plan"]


@products_on_one_thread()
def quantize_graph(
    graph: gs.Graph,
    scheme: Scheme | str,
    data: CalibrationData | None = None,
    *,
    progress: Progress | None = None,
    layer_progress: LayerProgress | None = None,
    keep_float: bool = False,
    keep_grids: bool = False,
    fixed: FixedGrids | None = None,
) -> Quantized:
    """Quantize a float model in place, by a scheme or the preset of a name.

    Prepares it, lets the outputs on samples decide what the scheme leaves open
    (:mod:`transforms.pipelines.decide`), and writes what was decided (:mod:`transforms.pipelines.build`).
    ``progress`` is called as by :func:`transforms.calibrate.calibrate.calibrate`, ``layer_progress`` for each
    layer whose weights are rounded by its outputs (:mod:`transforms.pipelines.output_weights`).
    ``keep_float`` keeps a copy of the float model as it was quantized, in the result, and ``keep_grids`` the
    grids of tensors, for which weights are read once more. Tensors in ``fixed`` have the grids that it
    gives; what a scheme leaves to the outputs follows rules then.

    Fine-tuning is another step, :func:`transforms.finetune.finetune_model.finetune_model`: a scheme that asks
    for it is refused here. So is one that asks for mixed precision, which is
    :func:`transforms.mix_precision.mix_precision`.

    Raises ModelError for a model that is quantized already, ValueError for unknown names, formats that a
    tensor cannot have, NaN in weights, and data that are missing or do not fit; OSError if data cannot be
    read. On error the graph is left in an undefined state.
    """
    walk.check_graph(graph)
    scheme = scheme_of(scheme)
    _refuse_other_steps(scheme)
    fits = _fits_weights(scheme, data, fixed, keep_grids=keep_grids)
    data = data.repeatable(graph) if data and fits else data
    done = Quantized(grids=[] if keep_grids else None)
    if fixed:
        corrected = scheme.correct_biases is True or (data is not None and scheme.correct_biases is not False)
        scheme = scheme.by_rule().with_(correct_biases=corrected, full_range=OFF)
    targets = prepare_for(graph, scheme, done)
    targets.fixed = fixed or FixedGrids()
    if data is not None and (feeds := data.feeds(graph)).is_repeatable:
        mend_shapes(graph, (feed for _, feed in feeds), data.run)
        note_mended(graph, done.notes)
        scheme = _without_exceptions(graph, scheme, targets, feeds, done)
    decided = decide(graph, scheme, targets, data, progress)
    if decided.scheme.equalize_layers and scheme.equalize_layers is not True:
        equalize(graph, targets, done)
    move_named_outliers(graph, decided.moved(scheme), targets, done)
    statistics = decided.statistics or _measured(graph, decided.scheme, targets, data, progress)
    statistics = statistics and statistics.with_(options_of(decided.scheme))
    float_graph = copy_graph(graph) if keep_float or fits else None
    done.float_graph = float_graph if keep_float else None
    _note_data(graph, decided.scheme, targets, statistics, data, done)
    built = build(graph, decided.scheme, statistics, targets, done, decided.memory)
    wish = built.with_(full_range=scheme.full_range)
    done.scheme, done.record = _use_full_range(graph, wish, decided, statistics, done), decided.record
    if float_graph and data and fits:
        wish = done.scheme.with_(fit_weights=scheme.fit_weights)
        layers, fitted = fit_output_weights(float_graph, graph, wish, data, layer_progress)
        done.scheme = wish.with_(fit_weights=layers > 0)
        if layers:
            done.record.fitted = True
            done.record.notes.append(f"Weights rounded by outputs of layers: {fitted} of {layers} layers")
    return done


def _without_exceptions(
    graph: gs.Graph, scheme: Scheme, targets: SchemeTargets, feeds: Feeds, done: Quantized
) -> Scheme:
    """Return a scheme that keeps in float what masks that are fed, or zeros alone, would set the range of."""
    if not any(fmt.is_integer for fmt in scheme.named_formats):
        return scheme
    masks = fed_masks(graph, (feed for _, feed in islice(feeds, SEARCHED_ON)))
    zeros = zero_inputs(graph, (feed for _, feed in feeds))
    if not masks and not zeros:
        return scheme
    plan = plan_of(graph, scheme, targets, Quantized())
    kept = {"masks in the samples": masked_by(plan, masks), of_zeros(zeros): without_range(plan, zeros)}
    done.notes += [kept_in_float(names, why) for why, names in kept.items() if names]
    names = dict.fromkeys(chain(*kept.values()), FLOAT32)
    return scheme.with_(tensors={**names, **scheme.tensors})


def _refuse_other_steps(scheme: Scheme) -> None:
    if scheme.finetune:
        raise ValueError("the scheme asks for fine-tuning, which is a step of its own: finetune_model")
    if scheme.auto_mixed_precision:
        step = "transforms.mix_precision.mix_precision"
        raise ValueError(f"the scheme asks for mixed precision, which is a step of its own: {step}")


def _fits_weights(
    scheme: Scheme, data: CalibrationData | None, fixed: FixedGrids | None, *, keep_grids: bool
) -> bool:
    """Return whether outputs round weights; ValueError where they cannot as the scheme asks."""
    fits = scheme.fits_weights
    if scheme.fit_weights is not True:
        fits = fits and data is not None and data.decides and not fixed
    elif not fits:
        raise ValueError(
            f"fit_weights is true, no weight has fewer than {FEW_BITS} bits: it is {scheme.weight}"
        )
    elif fixed:
        raise ValueError("fit_weights is true, and grids are given: one of them says what scales are")
    elif data is None:
        raise MissingDataError("fit_weights is true, and calibration data to round weights by are missing")
    if fits and keep_grids:
        raise ValueError("keep_grids goes with fit_weights = false here: it changes grids that are kept")
    return fits


def _measured(
    graph: gs.Graph,
    scheme: Scheme,
    targets: SchemeTargets,
    data: CalibrationData | None,
    progress: Progress | None,
) -> Calibration | None:
    return calibrate_plan(plan_of(graph, scheme, targets, Quantized()), data, progress=progress)


def _use_full_range(
    graph: gs.Graph, wish: Scheme, decided: Decided, statistics: Calibration | None, done: Quantized
) -> Scheme:
    """Shift tensors of a written graph if outputs are better; return the scheme that says so."""
    if not isinstance(wish.full_range, str):
        return wish  # they do already
    if decided.judge is None or statistics is None:
        return wish.with_(full_range=OFF)
    scheme = try_full_range(graph, wish, statistics, decided.judge, decided.record)
    shift(graph, scheme, statistics, done)
    return scheme


def _note_data(
    graph: gs.Graph,
    scheme: Scheme,
    targets: SchemeTargets,
    statistics: Calibration | None,
    data: CalibrationData | None,
    done: Quantized,
) -> None:
    """Say what the data were used for, and which of the grids that were given."""
    if statistics is not None:
        done.calibrated = len(statistics.observed)
    elif data is not None:
        why = "those that are needed are given" if targets.fixed else "the formats of this scheme need none"
        done.notes.append(f"No ranges measured: {why}")
    if targets.fixed:
        done.notes.append(_used(plan_of(graph, scheme, targets, Quantized()), targets.fixed))


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
