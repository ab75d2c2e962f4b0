"""The best setting so far, and steps to better ones that can be counted on."""

from __future__ import annotations

import logging

from transforms.choose_ranges.bench import Bench
from transforms.choose_ranges.candidate import Candidate
from transforms.choose_ranges.measure_outputs import Gain, Score, drags, gain
from transforms.choose_ranges.setting import Setting
from transforms.choose_ranges.steps import Step

log = logging.getLogger(__name__)

_LEAST = 0.1
"""dB that a step has to bring for sure."""


class Search:
    """The best setting of one model so far, from the setting of the rules on."""

    def __init__(self, bench: Bench, start: Setting) -> None:
        """Measure where the search starts."""
        self._bench, self._start = bench, start
        score = bench.score(start)
        assert score is not None, "given up without a rival"
        self.best, self._score, self._first = start, score, score
        self.variant: Candidate | None = None
        self._tried = 1
        log.info("%s: %.2f dB", start, score.mean)

    def take(self, step: Step) -> None:
        """Go to the best of the settings that a step leads to, if it is better for sure."""
        found: list[tuple[float, Setting, Score]] = []
        for setting in step.settings(self.best):
            if setting == self.best or self._bench.is_same(setting, self.best):
                continue
            score = self._bench.score(setting, self._score)
            known = self._gain(str(setting), score, step.expected, step.spread)
            if score is not None and known.sure > _LEAST:
                found.append((known.sure, setting, score))
        if found:
            _, self.best, self._score = max(found, key=lambda one: one[0])

    def consider(self, candidate: Candidate, bench: Bench) -> bool:
        """Go over to a candidate, on whose bench the best setting is measured, if it is better for sure."""
        score = bench.score(self.best, self._score)
        known = self._gain(candidate.label, score, candidate.expected, candidate.spread)
        if score is None or known.sure <= _LEAST:
            return False
        self.variant, self._bench, self._score = candidate, bench, score
        return True

    def _gain(self, label: str, score: Score | None, expected: float, spread: float) -> Gain:
        self._tried += 1
        nothing = Gain(float("-inf"), 0.0)
        if score is None:
            log.info("%s: far behind", label)
            return nothing
        shown = gain(score, self._score)
        log.info("%s: %.2f dB, %+.2f +- %.2f", label, score.mean, shown.decibels, shown.error)
        return nothing if drags(score, self._first) else shown.shrunk(expected, spread)

    def line(self, samples: int) -> str:
        """Say what was chosen, and what it is worth."""
        before, after = self._first.mean, self._score.mean
        said = f"{after:.1f} dB on {samples} held-out samples, {self._tried} settings tried"
        if self.variant is not None:
            said = f"{self.variant.label}, {said}"
        if self.best == self._start and self.variant is None:
            return f"Ranges chosen by outputs: {self.best}, as by rule ({said})"
        return f"Ranges chosen by outputs: {self.best} ({said}; by rule {before:.1f} dB)"
