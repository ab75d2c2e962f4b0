"""Choose the fewest layers to put in float for a target, in a session with a switch for each layer.

Layers are ranked by the error that each causes alone, and as many are put in float as the target needs.
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
"""Runs of the ranking, all layers and samples together: it determines the number of samples."""


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
        """Rank the layers; ``outputs``: those to compare, ``names``: of nodes that a scheme can name."""
        self._model = model
        count = len(feeds)
        places = ranking(count, _RANKING_RUNS, len(model.parts)), searching_evenly(count)
        self._ranks, self._trials = (Trials(model, taken(feeds, set(indices))) for indices in places)
        self._outputs = [name for name in outputs if name in model.outputs] or model.outputs
        self._metric = target
        self._scores: dict[frozenset[int], float] = {}
        able = (i for i, part in enumerate(model.parts) if can_be_named(part, names))
        self.able = sorted(able, key=lambda i: (-self._alone(i), i))

    def fewest(self, target: Target, least: int) -> list[int]:
        """Return the indices of layers with which a target is met on these samples, ``least`` at least.

        For a gate on figures of samples, exactly the ``least`` worst layers are returned: few samples say
        little of such figures.
        """
        if isinstance(target, Gate) and target.figures is not None:
            return self.able[: max(least, 1)]

        def _holds(indices: Sequence[int]) -> bool:
            return target.holds(self._score(indices))

        needed = fewest(self.able, _holds)
        if self._metric.metric != "sqnr":
            return self.able[: max(least, len(needed))]
        unneeded = [i for i in self.able if i not in needed]
        return needed + unneeded[: max(least - len(needed), 0)]

    def _alone(self, part: int) -> float:
        names = self._ranks.parts_of(self._outputs)
        sums = [self._ranks.pooled((part,), name) for name in names]
        energies = ((output.error_energy, output.baseline_energy) for output in sums)
        return sum(error / signal for error, signal in energies if signal)

    def _score(self, in_float: Sequence[int]) -> float:
        key = frozenset(in_float)
        if key not in self._scores:
            on = self._trials.everything - key
            runs = zip(self._trials.feeds, self._trials.expected, strict=True)
            computed = (
                (outputs_of(self._outputs, expected), self._model.run(feed, on, self._outputs))
                for feed, expected in runs
            )
            groups = self._trials.groups if self._metric.metric == "sqnr" else {}
            pairs = ((split(expected, groups), split(outputs, groups)) for expected, outputs in computed)
            self._scores[key] = goal_metric(self._metric, pairs)
        return self._scores[key]
