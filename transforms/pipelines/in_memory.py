"""The recipe from a float graph to a quantized one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transforms.conversion.prepare import PREPARE
from transforms.conversion.rows import Row, shows
from transforms.conversion.write_plan import FINISH
from transforms.pipelines.build import build
from transforms.pipelines.later import later
from transforms.pipelines.measure import follow_rules, measure, probe
from transforms.pipelines.prepare import (
    follow_grids,
    give_grids,
    keep_exceptions,
    mend_by_samples,
    refuse_unfit,
)
from transforms.pipelines.work import Work, WorkRow
from transforms.scheme import Scheme
from transforms.scheme.scheme import FOUND

if TYPE_CHECKING:
    from transforms.features.language.keep_found import keep_found, take_found
    from transforms.pipelines.decide import decide
    from transforms.pipelines.fit import fit
else:
    decide, fit = later(__package__, "decide", "fit")
    keep_found, take_found = later("transforms.features.language", "keep_found", "keep_found.take_found")


def _has_samples(work: Work) -> bool:
    return work.data is not None


def _is_given_grids(work: Work) -> bool:
    return bool(work.options.fixed)


def _has_exceptions(work: Work) -> bool:
    return work.data is not None and any(fmt.is_integer for fmt in work.scheme.named_formats)


def _keeps_found(work: Work) -> bool:
    return work.scheme.weight == FOUND


def _stores_integers(work: Work) -> bool:
    """Return whether the scheme rounds weights alone to integers, if they are on no grid already."""
    scheme: Scheme = work.scheme
    weight = scheme.format(scheme.weight)
    is_alone = scheme.format(scheme.activation) is None and scheme.found
    return is_alone and not scheme.is_dynamic and weight is not None and weight.is_integer


_NAMED = {"targets": "name_targets"}
_PREPARED = tuple(row.name for row in PREPARE)
_FINISHED = tuple(row.name for row in FINISH)
_MEASURED = (*_PREPARED, "give_grids", "mend_by_samples", "keep_exceptions", "probe")
_DECIDED = (*_MEASURED, "measure", "follow_rules", "decide")

_BUILT = {"record.scheme": "build"}

KEEP_FOUND: WorkRow = Row(keep_found, when=_keeps_found, needs=_BUILT, after=_FINISHED)
FIT: WorkRow = Row(
    fit,
    when=lambda work: work.fits_weights,
    after=("build", "mix", "keep_found", *_FINISHED),
    phases=shows("fitting"),
)

IN_MEMORY: tuple[WorkRow, ...] = (
    Row(refuse_unfit, needs={"graph": "load"}, phases=shows("preparing")),
    Row(follow_grids, when=lambda work: bool(work.options.fixed) or work.record.grids is not None),
    *PREPARE,
    Row(give_grids, when=_is_given_grids, needs=_NAMED),
    Row(take_found, when=_stores_integers, after=_PREPARED),
    Row(mend_by_samples, when=_has_samples, after=_PREPARED),
    Row(keep_exceptions, when=_has_exceptions, needs=_NAMED, after=("mend_by_samples", *_PREPARED)),
    Row(
        probe,
        when=lambda work: work.asked.is_dynamic,
        needs=_NAMED,
        after=(*_PREPARED, "mend_by_samples", "keep_exceptions"),
    ),
    Row(measure, when=_has_samples, needs=_NAMED, after=_MEASURED, phases=shows("calibrating")),
    Row(follow_rules, when=lambda work: work.data is None, needs=_NAMED, after=_MEASURED),
    Row(decide, when=_has_samples, needs={"judge": "measure", **_NAMED}, after=_MEASURED),
    Row(build, needs={"statistics": "measure", **_NAMED}, after=_DECIDED, phases=shows("quantizing")),
    *FINISH,
    KEEP_FOUND,
    FIT,
)
"""Prepare the graph, calibrate, decide on samples, quantize, and fit weights of few bits."""
