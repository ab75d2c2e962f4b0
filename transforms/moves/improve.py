"""Trying one move after the other, and keeping what the judge accepts.

Each move starts from the best scheme so far; of its candidates the best accepted one is kept. Moves come in
the order of what they bring for their runs (``python -m tests.benchmarks.accuracy_table``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from transforms.judge.budget import Budget
from transforms.judge.errors import WORTH, Errors, Gain, gain
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
        record.samples, record.before = form.judge.count, self.errors.mean
        record.after = record.before
        log.info("by rule: %.2f dB on %d samples", record.before, record.samples)

    def try_schemes(self, move: str, candidates: Candidates, *, certainty: float = 1.0) -> None:
        """Take the best accepted of some candidates of the present form; ``certainty``: as of the gain."""
        found: list[tuple[Gain, str, Scheme, Errors]] = []
        for change, scheme in candidates:
            if scheme == self.scheme or self.form.is_same(scheme, self.scheme):
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
            self._take(best[2], best[3])

    def try_form(self, move: str, change: str, make: Callable[[], Form | None], cost: float = WORTH) -> bool:
        """Go over to another form of the model if the judge accepts it; the settings so far are kept."""
        form = make()
        if form is None:
            return False
        scheme = self.scheme.with_(outliers=form.scheme.outliers)
        errors = form.errors(scheme)
        won = gain(errors, self.errors)
        self._note(move, change, won, kept=won.is_accepted(cost))
        if won.is_accepted(cost):
            self.form = form
            self._take(scheme, errors)
        return won.is_accepted(cost)

    def keep(self, move: str, change: str, scheme: Scheme, errors: Errors, won: Gain, *, kept: bool) -> None:
        """Note a candidate that a move has measured itself, and take it if it is kept."""
        self._note(move, change, won, kept=kept)
        if kept:
            self._take(scheme, errors)

    def _note(self, move: str, change: str, won: Gain, *, kept: bool) -> None:
        self.record.tried.append(Tried(move, change, won, kept))
        log.info("%s", self.record.tried[-1])

    def _take(self, scheme: Scheme, errors: Errors) -> None:
        self.scheme, self.errors = scheme, errors
        self.record.after = errors.mean
