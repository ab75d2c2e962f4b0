"""Trying one move after the other, and keeping what the judge accepts.

Each move starts from the best scheme so far; of its candidates the best accepted one is kept. Their order is
that of ``MOVES`` in :mod:`transforms.pipelines.decide`.
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
"""Candidates of the same form: what each changes, in words, and its scheme."""


Rewrite = Callable[[gs.Graph, Scheme], None]
"""Does to a prepared graph, in place, what keys of a scheme say beside its quantization."""

Measure = Callable[[gs.Graph, Scheme], Calibration | None]
"""Returns the statistics of a graph that the candidates of a scheme need."""


_OF_FORMS = ("outliers", "equalize_layers", "rotate_channels")
"""Keys of a scheme that say what form the graph has."""


class Form:
    """A prepared float graph, a scheme in which nothing is open, and what measures candidates of it.

    ``plan_of`` plans a scheme for the graph, or for a copy of it.
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
        """Open nothing yet; the graph is not changed."""
        self.graph, self.scheme, self.statistics, self.judge = graph, scheme, statistics, judge
        self.memory = memory or WeightMemory()
        self.plan_of = plan_of

    def errors(self, scheme: Scheme) -> Errors:
        """Return the errors of a candidate that differs from the form in keys that are fed."""
        return self.model.errors(scheme)

    @cached_property
    def model(self) -> CandidateModel:
        """The model that candidates share."""
        parts = self.graph, self.scheme, self.plan_of, self.statistics, self.judge, self.memory
        return CandidateModel(*parts)

    def rest(self) -> None:
        """Free the memory of a large model that is open, until it is asked for again."""
        if "model" in vars(self):
            self.model.rest()

    def rewritten(self, graph: gs.Graph, scheme: Scheme, measure: Measure) -> Form | None:
        """Return the form of a graph in which a scheme has changed channels; None without statistics
        where this one has them."""
        self.rest()
        statistics = measure(graph, scheme)
        if statistics is None and self.statistics is not None:
            return None
        return Form(graph, scheme, statistics, self.judge.rewritten(graph), self.plan_of, self.memory)


class Best:
    """The best scheme so far, in its form, and its errors: a move reads and improves it.

    ``asked``: the scheme that was asked for, whose open keys the moves decide; ``nameable``: names of nodes
    that may stay float for the outputs; ``exclude``: nodes that stay float; ``rewrite`` and ``measure`` make
    other forms; ``ranged``: the form whose ranges were tried last.
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
        """Measure where the search starts: the scheme of the form."""
        self.form, self.scheme, self.asked = form, form.scheme, asked
        self.errors = form.errors(form.scheme)
        self.budget, self.decisions = budget, decisions
        self.nameable, self.exclude = nameable, exclude
        self.rewrite, self.measure = rewrite or _no_rewrite, measure or _no_statistics
        self.ranged: Form | None = None
        log.info("by rule: %.2f dB on %d samples", self.errors.mean, form.judge.count)

    def try_schemes(self, move: str, candidates: Candidates, *, certainty: float = 1.0) -> None:
        """Take the best accepted of some candidates of the present form; ``certainty``: as of the gain."""
        found: list[tuple[Gain, str, Scheme, Errors]] = []
        for change, scheme in candidates:
            if scheme == self.scheme or self.form.model.is_same(scheme, self.scheme):
                continue
            if not self.budget.allows(self.form.judge.count):
                self.decisions.left.append((move, change))
                continue
            errors = self.form.errors(scheme)
            found.append((gain(errors, self.errors), change, scheme, errors))
        accepted = [one for one in found if one[0].is_accepted(certainty=certainty)]
        best = max(accepted, key=lambda one: one[0].decibels, default=None)
        for one in found:
            self.note(move, one[1], one[0], self.form.judge.count, kept=one is best)
        if best is not None:
            self.scheme, self.errors = best[2:]

    def try_form(self, move: str, change: str, form: Form, cost: float | None) -> None:
        """Go over to another form of the model if the judge accepts it; the settings so far are kept.

        ``cost``: as of :meth:`take`.
        """
        own = form.scheme
        scheme = self.scheme.with_(**{key: getattr(own, key) for key in _OF_FORMS})
        if self.take(move, change, scheme, form.errors(scheme), cost):
            self.form = form
        else:
            form.rest()

    def take(self, move: str, change: str, scheme: Scheme, errors: Errors, cost: float | None) -> bool:
        """Take a candidate that was measured if the judge accepts it for its cost; return whether it does.

        ``cost``: in dB, None for a change that costs nothing, and is kept unless outputs are worse.
        """
        won = gain(errors, self.errors)
        kept = won.is_harmless if cost is None else won.is_accepted(cost)
        self.note(move, change, won, self.form.judge.count, kept=kept)
        if kept:
            self.scheme, self.errors = scheme, errors
        return kept

    def note(self, move: str, change: str, won: Gain, samples: int, *, kept: bool) -> None:
        """Enter a candidate in the decisions: what it changes, its gain on so many samples, if it is kept."""
        self.decisions.tried.append(Tried(move, change, won, kept, samples))
        log.info("%s", self.decisions.tried[-1])


Move = Callable[[Best], None]
"""Tries candidates on top of the best scheme so far, which it replaces by what the judge accepts."""


def _no_rewrite(graph: gs.Graph, scheme: Scheme) -> None:
    """Do nothing: formats without ranges have one form."""


def _no_statistics(graph: gs.Graph, scheme: Scheme) -> Calibration | None:
    """Return none: formats without ranges need none."""
    return None
