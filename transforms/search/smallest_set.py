"""The smallest set of things to keep so that a target holds, found with few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from itertools import chain, combinations

from transforms.search.assign_precision import assign
from transforms.search.greedy_search import Choices
from transforms.search.knapsack import Option, Size
from transforms.search.output_metrics import METRICS
from transforms.search.target import Target

Kept = Set[int]
Evaluate = Callable[[Kept], float]
"""Returns the metric with these things kept."""

_FEW = 300
"""All smaller sets are tried if there are at most this many."""

_GONE = "given up"


def smallest_set(
    count: int, evaluate: Evaluate, target: Target, rank: Evaluate | None = None
) -> frozenset[int]:
    """Return which of ``count`` things to keep, as few as are found, so that the target holds.

    Starts from everything kept, drops as many as the target allows in the order of their error alone, then
    each of the rest that the target does not need. Errors depend on the things kept, so this is repeated with
    the error of each beside the set found. If there are few smaller sets, all are tried, and the result
    is the smallest possible; otherwise no single thing of it can be dropped.
    ``rank`` measures errors; it may be rougher than ``evaluate``. Raises TargetError if the target does not
    hold with everything kept.
    """
    rank, everything = rank or evaluate, frozenset(range(count))
    errors = {i: METRICS[target.metric].error(rank(everything - {i})) for i in range(count)}
    first = drop_greedily(everything, errors, evaluate, target)
    beside = {i: _error_beside(first, i, rank, target) for i in range(count)}
    best = min(first, drop_greedily(everything, beside, evaluate, target), key=len)
    return _first_that_holds(count, len(best), evaluate, target) or best


def drop_greedily(
    kept: Kept, errors: Mapping[int, float], evaluate: Evaluate, target: Target
) -> frozenset[int]:
    """Return the rest of ``kept`` after dropping all that the target allows, the least error first."""

    def _value(moved: Choices) -> float:
        return evaluate(frozenset(i for i in kept if str(i) not in moved))

    options = [Option(str(i), _GONE, errors[i], Size(0)) for i in sorted(kept)]
    moved = assign(options, {str(i): Size(1) for i in kept}, _value, target, "quality").choices
    return frozenset(i for i in kept if str(i) not in moved)


def _error_beside(kept: frozenset[int], thing: int, rank: Evaluate, target: Target) -> float:
    """Return the error that dropping one thing adds while the rest of a set is kept."""
    error = METRICS[target.metric].error
    without, beside = error(rank(kept - {thing})), error(rank(kept | {thing}))
    return max(0.0, without - beside) if math.isfinite(without) else math.inf


def _first_that_holds(count: int, size: int, evaluate: Evaluate, target: Target) -> frozenset[int] | None:
    """Return a set of fewer than ``size`` things that holds, if there are few enough to try them all."""
    if sum(math.comb(count, fewer) for fewer in range(size)) > _FEW:
        return None
    smaller = chain.from_iterable(combinations(range(count), fewer) for fewer in range(size))
    return next((kept for kept in map(frozenset, smaller) if target.holds(evaluate(kept))), None)
