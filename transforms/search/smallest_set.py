"""The smallest set of things to keep so that a number holds, found with few looks at that number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import combinations

from transforms.search.assign_precision import Choices, assign
from transforms.search.knapsack import Option, Size
from transforms.search.output_metrics import METRICS
from transforms.search.target import Target

Kept = Set[int]
Evaluate = Callable[[Kept], float]
"""Returns the metric with these things kept."""

_FEW = 300
"""Smaller sets are all tried if there are at most so many."""

_GONE = "given up"


def smallest_set(
    count: int, evaluate: Evaluate, target: Target, rank: Evaluate | None = None
) -> frozenset[int]:
    """Return which of ``count`` things to keep, as few as are found, so that the metric holds.

    Starts from everything kept, gives up what does least harm alone, all together as far as the target
    allows, then each that is left if it holds without. What does harm depends on what else is kept, so
    that this is done once more with the harm of each beside the set found. Where there are few smaller sets
    they are all tried, and the result is the smallest there is; otherwise no single thing of it can be given
    up.
    ``rank`` measures harms, if a rougher number than that of ``evaluate`` does. Raises TargetError if
    the target does not hold with everything kept.
    """
    rank, everything = rank or evaluate, frozenset(range(count))
    harms = {i: METRICS[target.metric].harm(rank(everything - {i})) for i in range(count)}
    first = drop_greedily(everything, harms, evaluate, target)
    beside = {i: _harm_beside(first, i, rank, target) for i in range(count)}
    best = min(first, drop_greedily(everything, beside, evaluate, target), key=len)
    return _first_that_holds(count, len(best), evaluate, target) or best


def drop_greedily(
    kept: Kept, harms: Mapping[int, float], evaluate: Evaluate, target: Target
) -> frozenset[int]:
    """Return what is left of ``kept`` when all is given up that can be, the least harmful first."""

    def _value(moved: Choices) -> float:
        return evaluate(frozenset(i for i in kept if str(i) not in moved))

    options = [Option(str(i), _GONE, harms[i], Size(0)) for i in sorted(kept)]
    moved = assign(options, {str(i): Size(1) for i in kept}, _value, target, "quality").choices
    return frozenset(i for i in kept if str(i) not in moved)


def _harm_beside(kept: frozenset[int], thing: int, rank: Evaluate, target: Target) -> float:
    """Return what giving up one thing adds to the harm if the others of a set are kept."""
    harm = METRICS[target.metric].harm
    without, beside = harm(rank(kept - {thing})), harm(rank(kept | {thing}))
    return max(0.0, without - beside) if math.isfinite(without) else math.inf


def _first_that_holds(count: int, size: int, evaluate: Evaluate, target: Target) -> frozenset[int] | None:
    """Return a set of less than ``size`` things that holds, if there are few enough to try them all."""
    if sum(math.comb(count, fewer) for fewer in range(size)) > _FEW:
        return None
    return next((kept for kept in _smaller(count, size) if target.holds(evaluate(kept))), None)


def _smaller(count: int, size: int) -> Iterator[frozenset[int]]:
    return (frozenset(chosen) for fewer in range(size) for chosen in combinations(range(count), fewer))
