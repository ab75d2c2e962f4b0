"""The state of a job: the model, and everything that its steps read and change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record
from transforms.conversion.rewriting import BySchemeMixin, Rewriting
from transforms.conversion.rows import Row, run_rows
from transforms.model import provenance
from transforms.pipelines.base import Base
from transforms.pipelines.options import Options
from transforms.pipelines.record import JobRecord
from transforms.pipelines.source import Source
from transforms.run.events import SILENT, Events
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.targets import ON_CPU

if TYPE_CHECKING:
    from transforms.calibrate.calibration import Calibration
    from transforms.calibrate.calibration_data import CalibrationData
    from transforms.judge.judge import Judge
    from transforms.plan.quantization_plan import QuantizationPlan
    from transforms.plan.scheme_targets import SchemeTargets
    from transforms.precision.held_out import HeldOut

SCHEME_ENTRY = provenance.PREFIX + "scheme"
"""Key of the scheme in a model's metadata."""


RowOf = TypeVar("RowOf", bound=Row[Any])


@dataclass
class Work(BySchemeMixin):
    """Everything that a step may read or change.

    Attributes
    ----------
    graph : Graph
        The model as it is now; empty before the step ``load``.
    asked : Scheme
        The scheme that was asked for; outputs decide its 'auto' keys.
    scheme : Scheme
        The scheme in use; without 'auto' keys after the step ``decide``.
    data : CalibrationData or None
        The samples.
    source : Source or None
        The float model; None for a work that begins with a graph.
    options : Options
        Options of the job, and its recipe.
    events : Events
        Receives phases, progress, lines and warnings.
    record : JobRecord
        Changes, decisions and notes so far.
    base : Base
        The float model in the form that is quantized.
    statistics : Calibration or None
        Statistics of the samples, after the step ``measure``.
    judge : Judge or None
        Compares outputs of candidates with those of the float model; None if nothing can be decided.
    held_out : HeldOut or None
        Samples that judge the target.
    """

    graph: gs.Graph
    asked: Scheme
    data: CalibrationData | None = None
    source: Source | None = None
    options: Options = field(default_factory=Options)
    events: Events = SILENT
    record: JobRecord = field(default_factory=JobRecord)
    base: Base = field(default_factory=Base)
    statistics: Calibration | None = None
    judge: Judge | None = None
    held_out: HeldOut | None = None

    def __post_init__(self) -> None:
        """Set the scheme in use to the scheme that was asked for."""
        self.scheme = self.asked

    @property
    def targets(self) -> SchemeTargets | None:
        """The nodes and tensors that the scheme names in the base."""
        return self.base.targets

    @targets.setter
    def targets(self, targets: SchemeTargets | None) -> None:
        self.base.targets = targets

    @property
    def run_here(self) -> RunOptions:
        """How to run a model for its figures: as users open it, or simulated if it is for another runtime."""
        return replace(self.options.run, simulate=self.asked.target not in ("", ON_CPU))

    @property
    def fits_weights(self) -> bool:
        """Whether weights are fitted: if the scheme says so, or they have few bits and there are samples."""
        if self.asked.fit_weights is True:
            return True
        return (
            self.asked.fits_weights and self.data is not None and self.data.decides and not self.options.fixed
        )

    def plan(
        self, graph: gs.Graph | None = None, scheme: Scheme | None = None, record: Record | None = None
    ) -> QuantizationPlan:
        """Return the plan of a scheme for the graph, or for another graph; ``record`` gets its notes."""
        from transforms.conversion.write_plan import make_plan  # not loaded by conversions to BF16

        return make_plan(
            self.graph if graph is None else graph,
            self.scheme if scheme is None else scheme,
            self.named,
            Record() if record is None else record,
        )

    def float_form(self) -> gs.Graph:
        """Return the float model in the form that was quantized: the kept graph, or prepared again."""
        if self.base.graph is not None:
            return self.base.graph
        assert self.source is not None, "else it was kept"
        from transforms.conversion.prepare import PREPARE

        rewriting = Rewriting(self.source.load(), self.scheme)
        run_rows(rewriting, self.taken(PREPARE))
        return rewriting.graph

    def taken(self, rows: Sequence[RowOf]) -> Sequence[RowOf]:
        """Return those of the rows that are in the recipe of the work."""
        return [row for row in rows if not self.options.recipe or row in self.options.recipe]

    def close(self) -> None:
        """Set all 'auto' keys of the scheme by rules."""
        self.asked, self.scheme = self.asked.by_rule(), self.scheme.by_rule()


WorkRow = Row[Work]
"""A row of a recipe that makes a model."""
