"""The fewest layers to put back for a target, chosen in a session in which they are switched.

Layers are ranked by the error that each makes alone, and as many are put back as the target takes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from ops.array_types import Feed
from transforms.judge.channel_groups import split
from transforms.judge.sample_roles import ranking, searching_evenly, taken
from transforms.precision.bench import goal_metric, outputs_of
from transforms.precision.finer_scheme import can_be_named
from transforms.precision.switched_layers import SwitchedLayers, Trials
from transforms.search.gate import Gate
from transforms.search.group_search import fewest
from transforms.search.target import Target

_RANKING_RUNS = 256
"""Runs in which layers are ranked, on as many samples as come to that."""


class FewestLayers:
    """Chooses layers of a model on some feeds; ``able``: those that can be chosen, the worst first."""

    def __init__(
        self,
        model: SwitchedLayers,
        feeds: Sequence[Feed],
        target: Target,
        outputs: Sequence[str],
        names: Set[str],
    ) -> None:
        """Rank the layers; ``names``: of nodes that a scheme can name."""
        self._model = model
        count = len(feeds)
        places = ranking(count, _RANKING_RUNS, len(model.parts)), searching_evenly(count)
        self._ranks, self._trials = (Trials(model, taken(feeds, set(some))) for some in places)
        self._outputs = [name for name in outputs if name in model.outputs] or model.outputs
        self._metric = target
        self._known: dict[frozenset[int], float] = {}
        able = (i for i, part in enumerate(model.parts) if can_be_named(part, names))
        self.able = sorted(able, key=lambda i: (-self._alone(i), i))

    def fewest(self, target: Target, least: int) -> list[int]:
        """Return parts that reach a target on these samples, with those that matter most at least so many.

        For figures of samples, so many are taken: few samples say little of them.
        """
        if isinstance(target, Gate) and target.figures is not None:
            return self.able[: max(least, 1)]

        def _holds(kept: Sequence[int]) -> bool:
            return target.holds(self._score(kept))

        found = fewest(self.able, _holds)
        if self._metric.metric != "sqnr":
            return self.able[: max(least, len(found))]
        others = [i for i in self.able if i not in found]
        return found + others[: max(least - len(found), 0)]

    def _alone(self, part: int) -> float:
        names = self._ranks.parts_of(self._outputs)
        sums = [self._ranks.pooled((part,), name) for name in names]
        signals = ((one.error_energy, one.baseline_energy) for one in sums)
        return sum(error / signal for error, signal in signals if signal)

    def _score(self, kept: Sequence[int]) -> float:
        key = frozenset(kept)
        if key not in self._known:
            on = self._trials.everything - key
            runs = zip(self._trials.feeds, self._trials.expected, strict=True)
            made = (
                (outputs_of(self._outputs, expected), self._model.run(feed, on, self._outputs))
                for feed, expected in runs
            )
            groups = self._trials.groups if self._metric.metric == "sqnr" else {}
            pairs = ((split(expected, groups), split(found, groups)) for expected, found in made)
            self._known[key] = goal_metric(self._metric, pairs)
        return self._known[key]
