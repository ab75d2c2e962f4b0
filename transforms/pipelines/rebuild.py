"""Building the model of a job again by another scheme, in which nothing is open."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.load import read_float
from transforms.pipelines.record import JobRecord
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work, WorkRow
from transforms.scheme import Scheme


def rebuilt(
    work: Work, scheme: Scheme, data: CalibrationData | None = None, more: Sequence[WorkRow] = ()
) -> Work:
    """Return another work on the float model, built by a scheme and the steps that built this one.

    ``data``: instead of all samples. ``more``: rows after those, where the scheme leaves something open.

    Tensors are shifted to the full range as they were asked for: finer layers leave others to shift.
    """
    wish = scheme.with_(full_range=work.asked.full_range)
    other = Work(
        read_float(work, wish),
        wish,
        data or work.data,
        source=work.source,
        options=work.options,
        keeps_float=work.keeps_float or work.compares,
        compares=work.compares and bool(more),
        may_compare=work.may_compare,
        moves=work.moves,
        record=JobRecord(grids=None if work.record.grids is None else []),
    )
    return run(other, [*_building(work.recipe), *more])


def _building(recipe: Sequence[WorkRow]) -> Sequence[WorkRow]:
    """Return the rows between those that load a model and require that something of it is quantized."""
    names = [row.name for row in recipe]
    first = names.index("load") + 1 if "load" in names else 0
    return recipe[first : names.index("require") if "require" in names else len(names)]


class LastRebuilt:
    """Builds the model of a work by schemes, one after another, and keeps the ``last`` alone."""

    def __init__(self, work: Work) -> None:
        """Begin with the work itself."""
        self._work = self.last = work

    def __call__(self, scheme: Scheme) -> tuple[gs.Graph, Scheme]:
        """Return the model of a scheme, with the scheme in use."""
        self.last = rebuilt(self._work, scheme)
        return self.last.graph, self.last.scheme


def take_over(work: Work, other: Work) -> None:
    """Take over the model of another work, with its scheme and record; decisions stay those of before."""
    before, record = work.record, other.record
    record.decisions, record.lossy = before.decisions, before.lossy
    record.placed, record.reached, record.beside = before.placed, before.reached, before.beside
    record.fixed, record.steps = before.fixed, before.steps
    record.judged_digest = before.judged_digest
    work.graph, work.float_graph = other.graph, other.float_graph
    work.scheme, work.record = other.scheme, record
    work.targets, work.statistics, work.memory = other.targets, other.statistics, other.memory
