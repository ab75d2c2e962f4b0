"""Build the model of a job again by another scheme without 'auto' keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import dropwhile, takewhile

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration_data import CalibrationData
from transforms.conversion.record import MASKED, Record
from transforms.conversion.rows import run_rows
from transforms.graph import walk
from transforms.graph.selection import label_of
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.base import Base
from transforms.pipelines.load import read_float
from transforms.pipelines.measure import change_form, measure_missing, rules_beside_form
from transforms.pipelines.options import Options
from transforms.pipelines.record import JobRecord
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work, WorkRow
from transforms.plan.tensor_grids import FixedGrids
from transforms.precision.finer_scheme import names_of
from transforms.run.events import SILENT
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import IN_FLOAT
from transforms.scheme.scheme import FLOAT32


def rebuilt(work: Work, scheme: Scheme, data: CalibrationData | None = None) -> Work:
    """Return another work on the float model, built by a scheme and the rows that built this one.

    The scheme may differ from the requested one in keys that outputs decide, in layers and tensors that are
    float, and in its target; outputs decide its 'auto' keys anew. ``data``: instead of all samples, if these
    are read again.
    """
    data = data or work.data
    return _from_base(work, scheme) or _from_undecided(work, scheme, data) or _from_source(work, scheme, data)


def _from_base(work: Work, scheme: Scheme) -> Work | None:
    """Return the model built from the prepared graph and the statistics; None if these do not suffice.

    They suffice for a scheme that only puts more layers and tensors in float than the scheme in use.
    """
    if work.base.graph is None or work.base.prepared is None or not _is_floater(scheme, work.scheme):
        return None
    if work.base.prepared.changes[MASKED]:
        return None  # which biases are added after their layers depends on formats of layers
    graph = copy_graph(work.base.graph)
    base = replace(work.base, targets=work.named.naming(graph, scheme))
    other = _beginning(work, graph, scheme, base, work.base.prepared)
    if not measure_missing(other):
        return None
    run_rows(other, _until_require(work.options.recipe, "build"))
    return other


def _from_undecided(work: Work, scheme: Scheme, data: CalibrationData | None) -> Work | None:
    """Return a work on the model before any decision, measured anew; None if that was not kept."""
    prepared = work.base.undecided
    if prepared is None or prepared.record.changes[MASKED]:
        return None
    graph = copy_graph(prepared.graph)
    base = Base(undecided=prepared, targets=work.named.naming(graph, scheme), memory=work.base.memory)
    other = _beginning(work, graph, scheme, base, prepared.record)
    other.data, other.statistics, other.judge = data, None, None
    other.scheme = rules_beside_form(scheme)
    change_form(other, work.asked)
    run_rows(other, _until_require(work.options.recipe, "keep_exceptions", "measure"))
    return other


def _beginning(work: Work, graph: gs.Graph, scheme: Scheme, base: Base, prepared: Record) -> Work:
    """Return another work on a copy of a prepared model."""
    return replace(
        work,
        graph=graph,
        asked=scheme,
        base=base,
        options=_building(work),
        events=SILENT,
        record=JobRecord(
            changes=Counter(prepared.changes),
            notes=list(prepared.notes),
            grids=None if work.record.grids is None else [],
        ),
    )


def _building(work: Work) -> Options:
    """Return the options of a work that compares nothing, but keeps the float model for later comparison."""
    keeps_float = work.options.keeps_float or work.options.compares
    return replace(work.options, keeps_float=keeps_float, compares=False)


def _is_floater(scheme: Scheme, other: Scheme) -> bool:
    """Return whether a scheme differs from another one only by more layers and tensors in float."""
    like_it = scheme.with_(layers=other.layers, tensors=other.tensors)
    layers = (rule for name, rule in scheme.layers.items() if other.layers.get(name) != rule)
    formats = (fmt for name, fmt in scheme.tensors.items() if other.tensors.get(name) != fmt)
    are_left = scheme.layers.keys() >= other.layers.keys() and scheme.tensors.keys() >= other.tensors.keys()
    return (
        like_it == other
        and are_left
        and all(rule == IN_FLOAT for rule in layers)
        and all(fmt == FLOAT32 for fmt in formats)
    )


def _from_source(work: Work, scheme: Scheme, data: CalibrationData | None) -> Work:
    other = Work(
        read_float(work, scheme),
        scheme,
        data,
        source=work.source,
        options=replace(_building(work), fixed=FixedGrids(), tuning=None, recipe=()),
        record=JobRecord(grids=None if work.record.grids is None else []),
    )
    names = [row.name for row in work.options.recipe]
    first = names.index("load") + 1 if "load" in names else 0
    return run(other, _until_require(work.options.recipe[first:]))


def nameable(work: Work) -> Set[str]:
    """Return the names of nodes that a scheme can name: those before channels are moved."""
    scheme, asked, base = work.scheme, work.asked, work.base
    if base.names and not asked.outliers and scheme.rotate_channels == asked.rotate_channels:
        return base.names
    if scheme.outliers or base.graph is None:
        return names_of(partial(read_float, work, scheme), scheme)
    return work.named.names | {label_of(node) for node in walk.nodes(base.graph)}


def _until_require(recipe: Sequence[WorkRow], *first: str) -> Sequence[WorkRow]:
    """Return the rows before ``require``, from the first of these names on."""
    rows = dropwhile(lambda row: bool(first) and row.name not in first, recipe)
    return list(takewhile(lambda row: row.name != "require", rows))


class LastRebuilt:
    """Builds the model of a work by other schemes, and keeps only the ``last`` one."""

    def __init__(self, work: Work) -> None:
        """Begin with the work itself."""
        self._work = self.last = work

    def __call__(self, scheme: Scheme) -> tuple[gs.Graph, Scheme]:
        """Build the model of a scheme; return it with the scheme in use."""
        self.last = rebuilt(self._work, scheme)
        return self.last.graph, self.last.scheme


def take_over(work: Work, other: Work) -> None:
    """Take over the model of another work, with its scheme and record, but not its decisions."""
    work.record.take_over(other.record)
    work.graph, work.base, work.scheme = other.graph, other.base, other.scheme
    work.statistics = other.statistics
