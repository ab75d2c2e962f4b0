"""A model on its way through a list of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.calibrate.calibration import Calibration
from transforms.conversion.quantize_steps import plan_of
from transforms.conversion.record import Record
from transforms.judge.judge import Judge
from transforms.moves.improve import Move
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import SchemeTargets
from transforms.plan.tensor_grids import FixedGrids
from transforms.plan.weight_cache import WeightMemory
from transforms.run.events import SILENT, Events
from transforms.scheme import Scheme


@dataclass
class Work:
    """All that a step may read or change.

    Attributes
    ----------
    graph : Graph
        The model as it is now.
    asked : Scheme
        The scheme that was asked for. What it leaves open is for the outputs to decide.
    scheme : Scheme
        The scheme in use; from the step ``decide`` on nothing in it is open.
    data : CalibrationData or None
        The samples.
    fixed : FixedGrids
        Grids of tensors that are given, and not to be measured.
    keeps_float : bool
        Whether ``float_graph`` is kept for later steps.
    moves : sequence of Move, optional
        What the step ``decide`` tries, instead of its ``MOVES``.
    events : Events
        Receives phases, progress, lines and warnings.
    record : Record
        What was done, decided and noted so far.
    float_graph : Graph or None
        The float model as it was quantized: prepared, folded and fused.
    targets : SchemeTargets or None
        The nodes and tensors that the scheme names, after the step ``prepare``.
    statistics : Calibration or None
        Statistics of the samples, after the step ``measure``.
    judge : Judge or None
        Compares outputs of candidates with those of the float model; None where nothing can be decided.
    memory : WeightMemory or None
        Weights on the grids of candidates, which the graph that is built shares.
    """

    graph: gs.Graph
    asked: Scheme
    data: CalibrationData | None = None
    fixed: FixedGrids = field(default_factory=FixedGrids)
    keeps_float: bool = False
    moves: Sequence[Move] | None = None
    events: Events = SILENT
    record: Record = field(default_factory=Record)
    float_graph: gs.Graph | None = None
    targets: SchemeTargets | None = None
    statistics: Calibration | None = None
    judge: Judge | None = None
    memory: WeightMemory | None = None

    def __post_init__(self) -> None:
        """Begin with the scheme that was asked for."""
        self.scheme = self.asked

    @property
    def named(self) -> SchemeTargets:
        """What the scheme names; ValueError before the step that finds it."""
        if self.targets is None:
            raise ValueError("the graph is not prepared yet: the step 'prepare' comes first")
        return self.targets

    def plan(
        self, graph: gs.Graph | None = None, scheme: Scheme | None = None, record: Record | None = None
    ) -> QuantizationPlan:
        """Return the plan of a scheme for the graph, or for another form of it, noted in a ``record``."""
        return plan_of(
            self.graph if graph is None else graph,
            self.scheme if scheme is None else scheme,
            self.named,
            Record() if record is None else record,
        )

    def close(self) -> None:
        """Let rules decide whatever the scheme leaves open."""
        self.asked = self.scheme = self.asked.by_rule()
