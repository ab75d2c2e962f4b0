"""A model on its way through a list of steps."""

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
"""The entry of a model's metadata that holds its scheme."""


RowOf = TypeVar("RowOf", bound=Row[Any])


@dataclass
class Work(BySchemeMixin):
    """All that a step may read or change.

    Attributes
    ----------
    graph : Graph
        The model as it is now; empty before the step ``load``.
    asked : Scheme
        The scheme that was asked for. What it leaves open is for the outputs to decide.
    scheme : Scheme
        The scheme in use; from the step ``decide`` on nothing in it is open.
    data : CalibrationData or None
        The samples.
    source : Source or None
        The float model; None for a work that begins with a graph.
    options : Options
        What the job is told beside the scheme, and its recipe.
    events : Events
        Receives phases, progress, lines and warnings.
    record : JobRecord
        What was done, decided and noted so far.
    base : Base
        The float model as it was quantized.
    statistics : Calibration or None
        Statistics of the samples, after the step ``measure``.
    judge : Judge or None
        Compares outputs of candidates with those of the float model; None where nothing can be decided.
    held_out : HeldOut or None
        Samples that a goal is judged on.
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
        """Begin with the scheme that was asked for."""
        self.scheme = self.asked

    @property
    def targets(self) -> SchemeTargets | None:
        """What the scheme names in the base."""
        return self.base.targets

    @targets.setter
    def targets(self, targets: SchemeTargets | None) -> None:
        self.base.targets = targets

    @property
    def run_here(self) -> RunOptions:
        """How a model is run for figures of it: as users open it, or as it says if it is for elsewhere."""
        return replace(self.options.run, simulate=self.asked.target not in ("", ON_CPU))

    @property
    def fits_weights(self) -> bool:
        """Whether outputs of layers round the weights: the scheme's word, or few bits and samples."""
        if self.asked.fit_weights is True:
            return True
        return (
            self.asked.fits_weights and self.data is not None and self.data.decides and not self.options.fixed
        )

    def plan(
        self, graph: gs.Graph | None = None, scheme: Scheme | None = None, record: Record | None = None
    ) -> QuantizationPlan:
        """Return the plan of a scheme for the graph, or for another form of it, noted in a ``record``."""
        from transforms.conversion.write_plan import make_plan  # not loaded by conversions to BF16

        return make_plan(
            self.graph if graph is None else graph,
            self.scheme if scheme is None else scheme,
            self.named,
            Record() if record is None else record,
        )

    def float_form(self) -> gs.Graph:
        """Return the float model as it was quantized: the one that was kept, or made again."""
        if self.base.graph is not None:
            return self.base.graph
        assert self.source is not None, "else it was kept"
        from transforms.conversion.prepare import PREPARE

        rewriting = Rewriting(self.source.load(), self.scheme)
        run_rows(rewriting, self.taken(PREPARE))
        return rewriting.graph

    def taken(self, rows: Sequence[RowOf]) -> Sequence[RowOf]:
        """Return those of some rows that the work takes."""
        return [row for row in rows if not self.options.recipe or row in self.options.recipe]

    def close(self) -> None:
        """Let rules decide whatever the scheme leaves open."""
        self.asked, self.scheme = self.asked.by_rule(), self.scheme.by_rule()


WorkRow = Row[Work]
"""A row of a recipe that makes a model."""
