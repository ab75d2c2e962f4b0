"""Step: quantize the prepared graph by the scheme."""

from __future__ import annotations

from transforms.calibrate.calibration import options_of
from transforms.conversion.write_plan import write_plan
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.work import Work
from transforms.plan.quant_spec import BIAS
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.sampled_exceptions import guarded_nan, kept_in_float
from transforms.plan.tensor_grids import FixedGrids
from transforms.scheme.scheme import FLOAT32


def build(work: Work) -> None:
    """Quantize the prepared graph; tensors whose NaN the model tests for are added to the scheme as float."""
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
    """Quantize the graph in place by a scheme without 'auto' keys."""
    plan = work.plan(record=work.record)
    names = guarded_nan(plan, work.statistics.holding_nan) if work.statistics else []
    if names:
        work.record.notes.append(kept_in_float(names, "NaN that the model looks for"))
        work.scheme = work.scheme.with_(tensors={**work.scheme.tensors, **dict.fromkeys(names, FLOAT32)})
        plan = work.plan(record=work.record)
    write_plan(plan, work.statistics, work.record, work.base.memory)


def _note_data(work: Work) -> None:
    """Note how the data were used, and how many of the fixed grids."""
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
    """Return a note on the number of fixed grids that a plan uses; ValueError if it uses none."""
    sites = [(site, step) for site in plan.quantizations for step in site.steps if step.needs_range]
    grids = [(site.tensor, plan.grid(site, step)) for site, step in sites if site.role != BIAS]
    matched = [(tensor, grid) for tensor, grid in grids if grid]
    if not matched:
        raise ValueError(
            f"none of the {len(fixed)} grids given is of a tensor that this scheme makes integers"
        )
    tensors, used = {id(tensor) for tensor, _ in matched}, {id(grid) for _, grid in matched}
    unmatched = [
        f"'{spare.name}' in {spare.format or f'{spare.bits} bits'}"
        for spare in fixed
        if id(spare) not in used
    ]
    unused = f"; not used: {', '.join(unmatched[:3])}{', ...' if unmatched[3:] else ''}" if unmatched else ""
    return f"Ranges as given: {len(tensors)} tensors, of {len(fixed)} grids in the file{unused}"
