"""Choosing formats of layers so that the model as a whole meets a target.

Sensitivities determine the order of trials; only the measured value of the actual mixed model decides whether
the target holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ops.legal_names import refuse_unknown
from transforms.search.greedy_search import Assignment, Evaluate, GreedySearch, Step, check_options
from transforms.search.knapsack import Option, Size, choose_formats, least_bits, size_of
from transforms.search.target import STRATEGIES, Target

_BISECTIONS = 12
"""Halvings of the range of budgets: down to a 4096th of it, a fortieth of one layer in a hundred."""


def assign(
    options: Sequence[Option],
    baseline: Mapping[str, Size],
    evaluate: Evaluate,
    target: Target | None = None,
    strategy: str = "speed",
    *,
    budget: float | None = None,
    progress: Callable[[Step], None] | None = None,
) -> Assignment:
    """Return formats with which the model meets the target; without a target, every layer is moved.

    * ``speed``: starts from the baseline and moves options of least error first, skipping each that breaks
      the target and going on with the next. Steps double while they hold and are halved if they do not.
    * ``quality``: starts with every layer at its cheapest option, moves those of most error back until the
      target holds, and then moves down again every layer that can be: in the end no single move holds.
    * ``budget``: the least error with weights of ``budget`` bits; if that breaks the target, the least
      greater budget that meets it.

    ``options`` are the formats that layers may get, ``baseline`` the size of each layer in the formats that
    the target is first checked with. A relative target is relative to the metric of the baseline.
    ``evaluate`` is called once for each model. ``progress`` receives each step.

    Raises TargetError if the baseline breaks the target, ValueError for an unknown strategy, a budget that
    is missing, too small or without effect, and options of unknown layers or given twice.
    """
    _check(options, baseline, strategy, budget)

    def _rank(option: Option) -> tuple[float, float]:
        return option.error, option.size.total - baseline[option.layer].total

    walk = GreedySearch(options, baseline, evaluate, target, progress, _rank)
    if strategy == "speed":
        walk.descend(together=target is None)
    elif strategy == "quality":
        _from_below(walk)
    else:
        _within(walk, budget)
    return walk.result()


def cheapest(options: Iterable[Option], baseline: Mapping[str, Size]) -> dict[str, str]:
    """Return each layer's smallest option; the least error wins a tie."""
    chosen: dict[str, Option] = {}
    for option in sorted(options, key=lambda one: (one.size.total, one.error)):
        if option.size.total < baseline[option.layer].total:
            chosen.setdefault(option.layer, option)
    return {layer: option.label for layer, option in chosen.items()}


def _from_below(walk: GreedySearch) -> None:
    """Move back as few layers as the target requires, most error first, then down again if possible."""
    steps = _restorations(walk)
    low, high = 0, len(steps) - 1  # the last is the baseline, which holds
    if walk.attempt(steps[0]):
        return
    while high - low > 1:
        middle = (low + high) // 2
        if walk.attempt(steps[middle]):
            high = middle
        else:
            low = middle
    while walk.descend():
        pass


def _restorations(walk: GreedySearch) -> list[dict[str, str]]:
    """Return assignments from every layer's cheapest option to the baseline, the most error restored first.

    A layer goes to its smallest option that is larger and has less error, or else back to the baseline.
    """
    errors = {(option.layer, option.label): option.error for option in walk.options}
    choices = cheapest(walk.options, walk.baseline)
    steps = [choices]

    def _rank(layer: str) -> tuple[float, float]:
        saved = walk.baseline[layer].total - walk.size_in(choices, layer).total
        return errors[layer, choices[layer]], -saved

    while choices:
        layer = max(choices, key=_rank)
        now, error = walk.size_in(choices, layer), errors[layer, choices[layer]]
        better = [
            one
            for one in walk.options
            if one.layer == layer
            and one.error < error
            and now.total < one.size.total < walk.baseline[layer].total
        ]
        choices = {one: label for one, label in choices.items() if one != layer}
        if better:
            choices[layer] = min(better, key=lambda one: one.size.total).label
        steps.append(choices)
    return steps


def _within(walk: GreedySearch, budget: float | None) -> None:
    """Choose formats for the budget, or for the least greater budget that meets the target."""
    choose = partial(choose_formats, walk.options, walk.baseline)
    if budget is None:
        if walk.target is None:
            raise ValueError("strategy 'budget' needs a budget or a target")
        budget = least_bits(walk.options, walk.baseline)
    if walk.attempt(choose(budget)):
        return
    low, high = budget, size_of({}, walk.sizes, walk.baseline).weight
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        choices = choose(middle)
        if choices == walk.choices or walk.attempt(choices):
            high = size_of(walk.choices, walk.sizes, walk.baseline).weight
        else:
            low = middle


def _check(
    options: Iterable[Option], baseline: Mapping[str, Size], strategy: str, budget: float | None
) -> None:
    refuse_unknown(strategy, STRATEGIES, "strategy")
    if budget is not None and strategy != "budget":
        raise ValueError(f"a budget goes with strategy 'budget', not with '{strategy}'")
    check_options(options, baseline)
