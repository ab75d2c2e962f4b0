"""Try one move after the other, and keep the changes that the judge accepts.

Each move starts from the best scheme so far; the best accepted one of its candidates is kept. The order of
moves is that of ``MOVES`` in :mod:`transforms.pipelines.decide`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set
from functools import cached_property

import onnx_graphsurgeon as gs

from transforms.calibrate.calibration import Calibration
from transforms.graph.selection import Exclusion
from transforms.judge.budget import Budget
from transforms.judge.candidate_model import CandidateModel, PlanOf
from transforms.judge.decisions import Decisions, Tried
from transforms.judge.errors import Errors, Gain, gain
from transforms.judge.judge import Judge
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme

log = logging.getLogger(__name__)

Candidates = Iterable[tuple[str, Scheme]]
"""Candidates for the same graph: the change of each, in words, and its scheme."""


Rewrite = Callable[[gs.Graph, Scheme], None]
"""Changes channels of a prepared graph, in place, as keys of a scheme say."""

Measure = Callable[[gs.Graph, Scheme], Calibration | None]
"""Returns the statistics of a graph that the candidates of a scheme need."""


_OF_FORMS = ("outliers", "equalize_layers", "rotate_channels")
"""Keys of a scheme that change the prepared graph."""


class Form:
    """A prepared float graph, a scheme without 'auto' keys, and the model that measures candidates.

    ``plan_of`` returns the plan of a scheme for the graph, or for a copy of it.
    """

    def __init__(
        self,
        graph: gs.Graph,
        scheme: Scheme,
        statistics: Calibration | None,
        judge: Judge,
        plan_of: PlanOf,
        memory: WeightMemory | None = None,
    ) -> None:
        """Take the graph, which is not changed, without opening a model."""
        self.graph, self.scheme, self.statistics, self.judge = graph, scheme, statistics, judge
        self.memory = memory or WeightMemory()
        self.plan_of = plan_of

    def errors(self, scheme: Scheme) -> Errors:
        """Return the errors of a candidate that differs in keys of ``FED`` only."""
        return self.model.errors(scheme)

    @cached_property
    def model(self) -> CandidateModel:
        """The model that candidates share, opened at first use."""
        arguments = self.graph, self.scheme, self.plan_of, self.statistics, self.judge, self.memory
        return CandidateModel(*arguments)

    def rest(self) -> None:
        """Close the model if it is open and large; it opens again at the next use."""
        if "model" in vars(self):
            self.model.rest()

    def rewritten(self, graph: gs.Graph, scheme: Scheme, measure: Measure) -> Form | None:
        """Return the form of a graph whose channels a scheme has changed; None if calibration fails to give
        statistics that this form has."""
        self.rest()
        statistics = measure(graph, scheme)
        if statistics is None and self.statistics is not None:
            return None
        return Form(graph, scheme, statistics, self.judge.rewritten(graph), self.plan_of, self.memory)


class Best:
    """The best scheme so far, its form and its errors: a move reads and improves it.

    ``asked``: the scheme that was asked for, whose 'auto' keys the moves decide. ``nameable``: names of nodes
    that may stay float for the outputs. ``exclude``: nodes that stay float in any case. ``rewrite`` and
    ``measure``: make other forms. ``ranged``: the form whose ranges were tried last.
    """

    def __init__(
        self,
        form: Form,
        budget: Budget,
        decisions: Decisions,
        asked: Scheme,
        *,
        nameable: Set[str] = frozenset(),
        exclude: Exclusion = None,
        rewrite: Rewrite | None = None,
        measure: Measure | None = None,
    ) -> None:
        """Measure the scheme of the form, with which the search starts."""
        self.form, self.scheme, self.asked = form, form.scheme, asked
        self.errors = form.errors(form.scheme)
        self.budget, self.decisions = budget, decisions
        self.nameable, self.exclude = nameable, exclude
        self.rewrite, self.measure = rewrite or _no_rewrite, measure or _no_statistics
        self.ranged: Form | None = None
        log.info("by rule: %.2f dB on %d samples", self.errors.mean, form.judge.count)

    def try_schemes(self, move: str, candidates: Candidates, *, certainty: float = 1.0) -> None:
        """Take the best accepted candidate for the present form; ``certainty``: as of Gain.is_accepted."""
        measured: list[tuple[Gain, str, Scheme, Errors]] = []
        for change, scheme in candidates:
            if scheme == self.scheme or self.form.model.is_same(scheme, self.scheme):
                continue
            if not self.budget.allows(self.form.judge.count):
                self.decisions.left.append((move, change))
                continue
            errors = self.form.errors(scheme)
            measured.append((gain(errors, self.errors), change, scheme, errors))
        accepted = [candidate for candidate in measured if candidate[0].is_accepted(certainty=certainty)]
        best = max(accepted, key=lambda candidate: candidate[0].decibels, default=None)
        for candidate in measured:
            self.note(move, candidate[1], candidate[0], self.form.judge.count, kept=candidate is best)
        if best is not None:
            self.scheme, self.errors = best[2:]

    def try_form(self, move: str, change: str, form: Form, cost: float | None) -> None:
        """Change to another form of the model if the judge accepts it, with the settings so far.

        ``cost``: as of :meth:`take`.
        """
        changed = form.scheme
        scheme = self.scheme.with_(**{key: getattr(changed, key) for key in _OF_FORMS})
        if self.take(move, change, scheme, form.errors(scheme), cost):
            self.form = form
        else:
            form.rest()

    def take(self, move: str, change: str, scheme: Scheme, errors: Errors, cost: float | None) -> bool:
        """Take a measured candidate if the judge accepts it for its cost; return whether it does.

        ``cost``: in dB; None for a change without cost, which is kept unless outputs get worse.
        """
        won = gain(errors, self.errors)
        is_kept = won.is_harmless if cost is None else won.is_accepted(cost)
        self.note(move, change, won, self.form.judge.count, kept=is_kept)
        if is_kept:
            self.scheme, self.errors = scheme, errors
        return is_kept

    def note(self, move: str, change: str, won: Gain, samples: int, *, kept: bool) -> None:
        """Record a candidate: its change, its gain ``won`` on ``samples`` samples, and whether it is kept."""
        self.decisions.tried.append(Tried(move, change, won, kept, samples))
        log.info("%s", self.decisions.tried[-1])


Move = Callable[[Best], None]
"""Tries candidates based on the best scheme so far, and replaces it by one that the judge accepts."""


def _no_rewrite(graph: gs.Graph, scheme: Scheme) -> None:
    """Do nothing: channels are not changed for formats without ranges."""


def _no_statistics(graph: gs.Graph, scheme: Scheme) -> Calibration | None:
    """Return None: formats without ranges need no statistics."""
    return None
