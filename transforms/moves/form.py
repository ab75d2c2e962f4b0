"""A float model in the form that a scheme gives it, with its statistics: where candidates are measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.judge.candidate_model import CandidateModel, PlanOf
from transforms.judge.errors import Errors
from transforms.judge.judge import Judge
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme

Rewrite = Callable[[gs.Graph, Scheme], None]
"""Does to a prepared graph, in place, what keys of a scheme say beside its quantization."""

Measure = Callable[[gs.Graph, Scheme], Calibration | None]
"""Returns the statistics of a graph that the candidates of a scheme need."""


class Form:
    """A prepared float graph, a scheme in which nothing is open, and what measures candidates of it."""

    def __init__(
        self,
        graph: gs.Graph,
        scheme: Scheme,
        statistics: Calibration | None,
        judge: Judge,
        plan_of: PlanOf,
        memory: WeightMemory | None = None,
    ) -> None:
        """Open nothing yet; the graph is not changed."""
        self.graph, self.scheme, self.statistics, self.judge = graph, scheme, statistics, judge
        self.plan_of, self.memory = plan_of, memory or WeightMemory()

    def errors(self, scheme: Scheme) -> Errors:
        """Return the errors of a candidate that differs from the form in keys that are fed."""
        return self.model.errors(scheme)

    @cached_property
    def model(self) -> CandidateModel:
        """The model that candidates share."""
        return self._opened(switches=False)

    @cached_property
    def switched(self) -> CandidateModel:
        """The same, slower, with computed tensors that may be left in float."""
        return self._opened(switches=True)

    def _opened(self, *, switches: bool) -> CandidateModel:
        parts = self.graph, self.scheme, self.plan_of, self.statistics, self.judge, self.memory
        return CandidateModel(*parts, switches=switches)

    def rewritten(self, graph: gs.Graph, scheme: Scheme, measure: Measure) -> Form | None:
        """Return the form of a graph in which a scheme has changed channels; None without statistics."""
        statistics = measure(graph, scheme)
        if statistics is None:
            return None
        return Form(graph, scheme, statistics, self.judge.rewritten(graph), self.plan_of, self.memory)
