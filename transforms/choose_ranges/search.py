"""The best setting so far, and steps to better ones that can be counted on."""

from __future__ import annotations

import logging
import math

from transforms.choose_ranges.bench import Bench
from transforms.choose_ranges.candidate import Candidate
from transforms.choose_ranges.measure_outputs import Score, drags, falls, gain
from transforms.choose_ranges.setting import Setting
from transforms.choose_ranges.steps import Known, Step

log = logging.getLogger(__name__)

_LEAST = 0.1
"""dB that a step has to bring, as far as is known."""

_WORTH = 0.5
"""dB that a rewrite of the model has to bring: less is what samples that are not seen may take back."""


class Search:
    """The best setting of one model so far, from the setting of the rules on."""

    def __init__(self, bench: Bench, start: Setting) -> None:
        """Measure where the search starts."""
        self._bench, self._start = bench, start
        score = bench.score(start)
        assert score is not None, "given up without a rival"
        self.best, self._score, self._first, self._ruled = start, score, score, score
        self._near = start, score
        self.variant: Candidate | None = None
        self._taken: list[Known] = []
        self._tried = 1
        log.info("%s: %.2f dB", start, score.mean)

    def take(self, step: Step) -> None:
        """Go to the best of the settings that a step leads to, if a gain is to be expected."""
        found: list[tuple[float, Setting, Score, Known]] = []
        for setting, known in step.settings(self.best):
            if setting == self.best or self._bench.is_same(setting, self.best):
                continue
            score = self._bench.score(setting, self._score)
            brings = self._gain(str(setting), score, known)
            if score is not None and brings > _LEAST:
                found.append((brings, setting, score, known))
        if found:
            _, self.best, self._score, known = max(found, key=lambda one: one[0])
            self._taken.append(known)
        if near := [one for one in found if not one[1].reaches_beyond]:
            self._near = max(near, key=lambda one: one[0])[1:3]

    def confirm(self) -> None:
        """Go back to the start unless all steps together are expected to be better than it, as each was.

        What they bring other models decides where samples hardly tell, as of outputs of few numbers: not
        against a loss of more than its standard error.
        """
        if self.best == self._start:
            return
        shown = gain(self._score, self._first)
        spread = math.hypot(*(known.spread for known in self._taken))
        expected = shown.shrunk(sum(known.expected for known in self._taken), spread)
        if shown.decibels < -shown.error or expected <= 0:
            log.info("back to %s", self._start)
            self.best, self._score = self._start, self._first
            self._near = self.best, self._score

    def consider(self, candidate: Candidate, bench: Bench) -> bool:
        """Go over to a candidate, on whose bench the best setting is measured, if it is better."""
        score = bench.score(self.best, self._score)
        brings = self._gain(candidate.label, score, Known(candidate.expected, candidate.spread))
        if score is None or brings <= _WORTH:
            return False
        self.variant, self._bench, self._score = candidate, bench, score
        if self.best == self._start:
            self._first = score
        if not self.best.reaches_beyond:
            self._near = self.best, score
        return True

    def _gain(self, label: str, score: Score | None, known: Known) -> float:
        """Return the dB to be expected, of samples and of other models; -inf for what is out of question.

        Other models decide how much of a gain that the samples show is believed, and not against samples that
        show a loss.
        """
        self._tried += 1
        if score is None:
            log.info("%s: far behind", label)
            return float("-inf")
        shown = gain(score, self._score)
        log.info("%s: %.2f dB, %+.2f +- %.2f", label, score.mean, shown.decibels, shown.error)
        if (known.shows and shown.is_loss) or drags(score, self._first) or falls(score, self._score):
            return float("-inf")
        return shown.shrunk(known.expected, known.spread)

    @property
    def near(self) -> Setting:
        """The best setting but for ranges that follow from how the ends of samples scatter.

        Float is for tensors whose numbers may be anywhere beyond, which these ranges hide: all samples are
        in them, and one that is not seen may not be.
        """
        return self.best.with_(methods=self._near[0].methods)

    @property
    def decibels(self) -> float:
        """The mean over outputs with such a setting."""
        return self._near[1].mean

    def line(self, samples: int) -> str:
        """Say what was chosen, and what it is worth."""
        before, after = self._ruled.mean, self._score.mean
        said = f"{after:.1f} dB on {samples} held-out samples, {self._tried} settings tried"
        if self.variant is not None:
            said = f"{self.variant.label}, {said}"
        if self.best == self._start and self.variant is None:
            return f"Ranges chosen by outputs: {self.best}, as by rule ({said})"
        return f"Ranges chosen by outputs: {self.best} ({said}; by rule {before:.1f} dB)"
