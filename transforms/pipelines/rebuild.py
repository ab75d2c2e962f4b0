"""Build the model of a job again by another scheme without 'auto' keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import takewhile

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration_data import CalibrationData
from transforms.conversion.record import MASKED
from transforms.conversion.rows import run_rows
from transforms.graph import walk
from transforms.graph.selection import label_of
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.load import read_float
from transforms.pipelines.measure import measure_missing
from transforms.pipelines.record import JobRecord
from transforms.pipelines.steps import run
from transforms.pipelines.work import Work, WorkRow
from transforms.plan.tensor_grids import FixedGrids
from transforms.precision.finer_scheme import names_of
from transforms.run.events import SILENT
from transforms.scheme import Scheme
from transforms.scheme.layer_rule import IN_FLOAT
from transforms.scheme.scheme import FLOAT32


def rebuilt(
    work: Work, scheme: Scheme, data: CalibrationData | None = None, *, decides: bool = False
) -> Work:
    """Return another work on the float model, built by a scheme and the rows that built this one.

    ``data``: instead of all samples. ``decides``: whether outputs decide the 'auto' keys of the scheme.
    """
    other = None if decides else _from_base(work, scheme)
    return other or _from_source(work, scheme, data, decides)


def _from_base(work: Work, scheme: Scheme) -> Work | None:
    """Return the model built from the prepared graph and the statistics; None if these do not suffice.

    They suffice for a scheme that only puts more layers and tensors in float than the scheme in use.
    """
    if work.base.graph is None or work.base.prepared is None or not _is_floater(scheme, work.scheme):
        return None
    if work.base.prepared.changes[MASKED]:
        return None  # which biases are added after their layers depends on formats of layers
    graph, record = copy_graph(work.base.graph), work.base.prepared
    other = replace(
        work,
        graph=graph,
        asked=scheme,
        base=replace(work.base, targets=work.named.naming(graph, scheme)),
        options=replace(work.options, compares=False),
        events=SILENT,
        record=JobRecord(
            changes=Counter(record.changes),
            notes=list(record.notes),
            grids=None if work.record.grids is None else [],
        ),
    )
    if not measure_missing(other):
        return None
    names = [row.name for row in work.options.recipe]
    run_rows(other, _until_require(work.options.recipe, names.index("build")))
    return other


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


def _from_source(work: Work, scheme: Scheme, data: CalibrationData | None, decides: bool) -> Work:
    options = replace(
        work.options,
        fixed=FixedGrids(),
        tuning=None,
        keeps_float=work.options.keeps_float or work.options.compares,
        compares=work.options.compares and decides,
        recipe=(),
    )
    other = Work(
        read_float(work, scheme),
        scheme,
        data or work.data,
        source=work.source,
        options=options,
        record=JobRecord(grids=None if work.record.grids is None else []),
    )
    return run(other, _building(work.options.recipe))


def nameable(work: Work) -> Set[str]:
    """Return the names of nodes that a scheme can name: those before channels are moved."""
    scheme, asked, base = work.scheme, work.asked, work.base
    if base.names and not asked.outliers and scheme.rotate_channels == asked.rotate_channels:
        return base.names
    if scheme.outliers or base.graph is None:
        return names_of(partial(read_float, work, scheme), scheme)
    return work.named.names | {label_of(node) for node in walk.nodes(base.graph)}


def _building(recipe: Sequence[WorkRow]) -> Sequence[WorkRow]:
    """Return the rows after ``load`` and before ``require``."""
    names = [row.name for row in recipe]
    return _until_require(recipe, names.index("load") + 1 if "load" in names else 0)


def _until_require(recipe: Sequence[WorkRow], first: int) -> Sequence[WorkRow]:
    return list(takewhile(lambda row: row.name != "require", recipe[first:]))


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
