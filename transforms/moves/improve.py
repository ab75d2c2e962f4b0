"""Trying one move after the other, and keeping what the judge accepts.

Each move starts from the best scheme so far; of its candidates the best accepted one is kept. Their order is
that of :mod:`transforms.pipelines.decide`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from transforms.judge.budget import Budget
from transforms.judge.errors import Errors, Gain, gain
from transforms.moves.form import Form
from transforms.moves.record import Record, Tried
from transforms.scheme import Scheme

log = logging.getLogger(__name__)

Candidates = Iterable[tuple[str, Scheme]]
"""Candidates of the same form: what each changes, in words, and its scheme."""


class Best:
    """The best scheme so far, in its form, and its errors."""

    def __init__(self, form: Form, budget: Budget, record: Record) -> None:
        """Measure where the search starts: the scheme of the form."""
        self.form, self.scheme = form, form.scheme
        self.errors = form.errors(form.scheme)
        self.budget, self.record = budget, record
        log.info("by rule: %.2f dB on %d samples", self.errors.mean, form.judge.count)

    def try_schemes(self, move: str, candidates: Candidates, *, certainty: float = 1.0) -> None:
        """Take the best accepted of some candidates of the present form; ``certainty``: as of the gain."""
        found: list[tuple[Gain, str, Scheme, Errors]] = []
        for change, scheme in candidates:
            if scheme == self.scheme or self.form.model.is_same(scheme, self.scheme):
                continue
            if not self.budget.allows(self.form.judge.count):
                self.record.notes.append(f"{move}: {change}: not tried, the model is too large")
                continue
            errors = self.form.errors(scheme)
            found.append((gain(errors, self.errors), change, scheme, errors))
        accepted = [one for one in found if one[0].is_accepted(certainty=certainty)]
        best = max(accepted, key=lambda one: one[0].decibels, default=None)
        for one in found:
            self._note(move, one[1], one[0], kept=one is best)
        if best is not None:
            self.scheme, self.errors = best[2:]

    def try_form(self, move: str, change: str, form: Form, cost: float) -> None:
        """Go over to another form of the model if the judge accepts it; the settings so far are kept."""
        own = form.scheme
        scheme = self.scheme.with_(outliers=own.outliers, equalize_layers=own.equalize_layers)
        if self.take(move, change, scheme, form.errors(scheme), cost):
            self.form = form

    def take(self, move: str, change: str, scheme: Scheme, errors: Errors, cost: float) -> bool:
        """Take a candidate that was measured if the judge accepts it for its cost; return whether it does."""
        won = gain(errors, self.errors)
        kept = won.is_accepted(cost)
        self._note(move, change, won, kept=kept)
        if kept:
            self.scheme, self.errors = scheme, errors
        return kept

    def _note(self, move: str, change: str, won: Gain, *, kept: bool) -> None:
        self.record.tried.append(Tried(move, change, won, kept, self.form.judge.count))
        log.info("%s", self.record.tried[-1])
