"""Steps that write the graph in low precision, as the scheme says."""

from __future__ import annotations

from transforms.calibrate.calibration import options_of
from transforms.conversion.write_plan import write_plan
from transforms.full_range.apply_full_range import apply_full_range, shift_grids
from transforms.model.copy_graph import copy_graph
from transforms.moves.full_range import try_full_range
from transforms.pipelines.work import Work
from transforms.plan.quant_spec import BIAS
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.sampled_exceptions import guarded_nan, kept_in_float
from transforms.plan.tensor_grids import FixedGrids
from transforms.scheme.scheme import FLOAT32
from transforms.scheme.scheme_values import OFF


def build(work: Work) -> None:
    """Quantize the prepared graph by the scheme, which also names tensors whose NaN the model looks for."""
    work.events.phase("quantizing")
    if work.statistics is not None:
        work.statistics = work.statistics.with_(options_of(work.scheme))
    is_compared = work.options.compares and work.judge is not None
    if work.base.graph is None and (is_compared or work.options.keeps_float or work.fits_weights):
        work.base.graph = copy_graph(work.graph)
    work.base.prepared = work.record.noted()
    _note_data(work)
    write_scheme(work)
    work.record.scheme = work.scheme


def write_scheme(work: Work) -> None:
    """Quantize the graph in place by a scheme that leaves nothing open but the full range."""
    plan = work.plan(record=work.record)
    names = guarded_nan(plan, work.statistics.holding_nan) if work.statistics else []
    if names:
        work.record.notes.append(kept_in_float(names, "NaN that the model looks for"))
        work.scheme = work.scheme.with_(tensors={**work.scheme.tensors, **dict.fromkeys(names, FLOAT32)})
        plan = work.plan(record=work.record)
    write_plan(plan, work.statistics, work.record, work.base.memory)


def shift(work: Work) -> None:
    """Shift the tensors of the written graph that the scheme names, and their grids."""
    if work.statistics is not None:
        shifted = apply_full_range(work.graph, work.scheme, work.statistics)
        work.record.shifted += shifted.count
        shift_grids(work.record.grids, shifted)


def use_full_range(work: Work) -> None:
    """Shift tensors to the full range of int8, those that the scheme names or with which outputs are better.

    The record has the scheme, in which nothing is open: it makes the same graph again.
    """
    shift(work)
    work.scheme = work.scheme.with_(full_range=work.asked.full_range)
    if isinstance(work.scheme.full_range, str):  # else they are shifted already
        _try_full_range(work)
    work.record.scheme = work.scheme


def _try_full_range(work: Work) -> None:
    """Shift tensors of the written graph if outputs are better, and name them in the scheme."""
    if work.judge is None or work.statistics is None:
        work.scheme = work.scheme.with_(full_range=OFF)
        return
    decisions = work.record.decisions
    work.scheme = try_full_range(work.graph, work.scheme, work.statistics, work.judge, decisions)
    shift(work)


def _note_data(work: Work) -> None:
    """Note how the data were used, and which of the grids that were given."""
    if work.statistics is not None:
        work.record.calibrated = len(work.statistics.observed)
    elif work.data is not None:
        why = (
            "those that are needed are given"
            if work.options.fixed
            else "the formats of this scheme need none"
        )
        work.record.notes.append(f"No ranges measured: {why}")
    if work.options.fixed:
        work.record.notes.append(_used(work.plan(), work.options.fixed))


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
