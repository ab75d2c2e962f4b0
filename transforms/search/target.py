"""A target: a bound of one metric of a model's outputs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import ClassVar

from transforms.search.output_metrics import METRICS, in_words

LOST_TOP1, EVALUATE = "lost_top1", "evaluate"
"""Metrics in addition to METRICS: :func:`transforms.search.output_metrics.lost_top1`, and the user's function
(:mod:`transforms.search.user_metric`)."""

SEEN_BEFORE_SOFTMAX = frozenset({"sqnr", "top1", "kl", LOST_TOP1})
"""Metrics that are measured before the Softmax of an output that ends in one: decibels, since a class at 0.99
says nothing of the errors, and metrics that a Softmax does not change."""

BEFORE = " before the Softmax"
"""Follows the name of a metric that was measured there."""

FALLBACKS = ("float32", "int16", "bf16")
"""Finer formats that layers may get instead of those of the scheme to meet a target."""


class TargetError(ValueError):
    """The model cannot meet a target."""


class FloatAloneError(TargetError):
    """Only the float model meets a target, so that no file is written."""


@dataclass(frozen=True)
class Scored:
    """A metric over samples, with its standard error in the same unit: 0 if it is not known.

    ``in_folds``: all samples judge, each on a model whose ranges exclude it.
    """

    value: float
    error: float = 0.0
    samples: int = 1
    in_folds: bool = False


@dataclass(frozen=True)
class Target:
    """A bound of a metric: one of METRICS, ``lost_top1`` (at most) or ``evaluate`` (at least).

    ``limit``: the worst value that holds; if ``relative``, how much worse the metric may be than the
    reference of :meth:`at`: the value before any layer is moved, or that of the float model.
    ``before_softmax``: outputs that end in a Softmax are measured before it.
    """

    metric: str
    limit: float
    relative: bool = False
    before_softmax: bool = field(default=False, kw_only=True)
    is_gate: ClassVar[bool] = False
    """Whether figures of samples are bounded, as by :class:`transforms.search.gate.Gate`."""

    @property
    def words(self) -> str:
        """The bounded quantity, for messages."""
        return f"{self.metric}{self.seen}"

    @property
    def seen(self) -> str:
        """Where decibels are measured, if not at the outputs."""
        return BEFORE if self.before_softmax and self.metric == "sqnr" else ""

    def unmet(self, text: str) -> TargetError:
        """Return the error for a model that misses the bound."""
        return TargetError(text)

    @property
    def larger_is_better(self) -> bool:
        """Whether the limit is a lower bound."""
        return METRICS[self.metric].larger_is_better if self.metric in METRICS else self.metric == EVALUATE

    def at(self, reference: float) -> Target:
        """Return the target as an absolute bound: itself, or relative to the reference."""
        if not self.relative:
            return self
        limit = reference - self.limit if self.larger_is_better else reference + self.limit
        return dataclasses.replace(self, limit=limit, relative=False)

    def checked(self, baseline: float) -> Target:
        """Return the target as an absolute bound; TargetError if the metric of the baseline breaks it."""
        bound = self.at(baseline)
        bound.check(baseline, "the model before anything is moved")
        return bound

    def holds(self, value: float) -> bool:
        """Return whether a value is within the limit, which must not be relative; NaN never is."""
        assert not self.relative, "the reference is not known"
        return value >= self.limit if self.larger_is_better else value <= self.limit

    def worse_end(self, scored: Scored) -> float:
        """Return the worse end of the interval of one standard error around a value."""
        return scored.value - scored.error if self.larger_is_better else scored.value + scored.error

    def is_shown(self, scored: Scored) -> bool:
        """Return whether samples show the target: the worse end of the interval is within the limit.

        A target counts as met by this rule only, since it has to hold for other samples, too.
        """
        return self.holds(self.worse_end(scored))

    def samples_needed(self, scored: Scored) -> int | None:
        """Return about how many samples are needed to show the target, if others scatter as these do.

        The standard error falls with the square root of their number. None if the value itself is at the
        limit or beyond it, so that no number of samples would do.
        """
        room = abs(scored.value - self.limit)
        if not self.holds(scored.value) or not room:
            return None
        return math.ceil(scored.samples * (scored.error / room) ** 2)

    def check(self, value: float, what: str, error: float = 0.0) -> None:
        """Raise TargetError unless the value of the model ``what``, with its error, is within the limit."""
        if not self.is_shown(Scored(value, error)):
            words = f"{self.text(value, error)}, the target is {self.bound}"
            raise self.unmet(f"{what} breaks the target: {words}")

    def text(self, value: float, error: float = 0.0) -> str:
        """Return the metric with a value and its standard error, in words: ``sqnr 31.25 +- 0.4 dB``."""
        if value == math.inf and self.larger_is_better:
            return "no error"
        return f"{self.words} {in_words(self.metric, value, error)}"

    @property
    def bound(self) -> str:
        """The limit in words: ``at least 30 dB``."""
        if self.relative:
            return f"at most {in_words(self.metric, self.limit)} worse"
        return f"at {'least' if self.larger_is_better else 'most'} {in_words(self.metric, self.limit)}"
