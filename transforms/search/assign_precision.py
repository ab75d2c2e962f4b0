"""Choosing formats of layers so that the model as a whole meets a target.

Sensitivities determine the order of trials; only the measured value of the actual mixed model decides whether
the target holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ops.legal_names import refuse_unknown
from transforms.search.knapsack import Option, Size, choose_formats, least_bits, size_of
from transforms.search.target import STRATEGIES, Target

Choices = Mapping[str, str]
"""The formats of moved layers, by LayerRule.label; other layers have those of the baseline."""

Evaluate = Callable[[Choices], float]
"""Returns the metric of the model with these formats."""

_BISECTIONS = 12
"""Halvings of the range of budgets: down to a 4096th of it, a fortieth of one layer in a hundred."""


@dataclass(frozen=True)
class Step:
    """A model that was tried: its metric, its size, and its changes to the last accepted one.

    ``moved``: layers and their formats, None for those of the baseline.
    """

    moved: tuple[tuple[str, str | None], ...]
    value: float
    accepted: bool
    size: Size


@dataclass(frozen=True)
class Assignment:
    """The chosen formats, with the metric and the size of the model, and those of the baseline.

    ``steps``: all trials in order, the baseline first. ``target``: the bound that ``value`` meets, or None.
    """

    choices: Choices
    steps: tuple[Step, ...]
    baseline: float
    value: float
    baseline_size: Size
    size: Size
    target: Target | None


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
    walk = _GreedySearch(options, baseline, evaluate, target, progress)
    if strategy == "speed":
        walk.descend(together=target is None)
    elif strategy == "quality":
        _from_below(walk)
    else:
        _within(walk, budget)
    return walk.result()


def checked_target(target: Target, baseline: float) -> Target:
    """Return the target as an absolute bound; TargetError if the value of the baseline breaks it."""
    bound = target.at(baseline)
    bound.check(baseline, "the model before anything is moved")
    return bound


def cheapest(options: Iterable[Option], baseline: Mapping[str, Size]) -> dict[str, str]:
    """Return each layer's smallest option; the least error wins a tie."""
    chosen: dict[str, Option] = {}
    for option in sorted(options, key=lambda one: (one.size.total, one.error)):
        if option.size.total < baseline[option.layer].total:
            chosen.setdefault(option.layer, option)
    return {layer: option.label for layer, option in chosen.items()}


class _GreedySearch:
    """A current assignment, which holds unless it was forced, and the trials so far."""

    def __init__(
        self,
        options: Sequence[Option],
        baseline: Mapping[str, Size],
        evaluate: Evaluate,
        target: Target | None,
        progress: Callable[[Step], None] | None,
    ) -> None:
        """Evaluate the baseline; TargetError if it breaks the target."""
        self.options = sorted(options, key=lambda o: (o.error, o.size.total - baseline[o.layer].total))
        self.baseline = baseline
        self.layers = list(dict.fromkeys(option.layer for option in options))
        self.sizes = {(option.layer, option.label): option.size for option in options}
        self.choices: dict[str, str] = {}
        self._evaluate, self._progress = evaluate, progress
        self._known: dict[frozenset[tuple[str, str]], float] = {}
        self._steps: list[Step] = []
        self._first = self.value_of({})
        self.target = checked_target(target, self._first) if target else None
        self.attempt({})

    def value_of(self, choices: Choices) -> float:
        """Return the metric of the model with these choices, computed once."""
        key = frozenset(choices.items())
        if key not in self._known:
            self._known[key] = self._evaluate(dict(choices))
        return self._known[key]

    def attempt(self, choices: dict[str, str]) -> bool:
        """Make an assignment the current one if it holds, and return whether it does."""
        value = self.value_of(choices)
        accepted = self.target is None or self.target.holds(value)
        changed = [layer for layer in self.layers if choices.get(layer) != self.choices.get(layer)]
        moved = tuple((layer, choices.get(layer)) for layer in changed)
        self._steps.append(Step(moved, value, accepted, size_of(choices, self.sizes, self.baseline)))
        if self._progress:
            self._progress(self._steps[-1])
        if accepted:
            self.choices = choices
        return accepted

    def descend(self, *, together: bool = False) -> bool:
        """Try all options once in the order of error, in groups; return whether any is accepted.

        A group that fails is halved down to the option that fails, which is skipped.
        """
        before, i = self.choices, 0
        size = len(self.options) if together else 1
        failing = None  # end of a group that is known to fail
        while i < len(self.options):
            end = min(i + size, len(self.options))
            group = self._with(self.options[i:end])
            if group == self.choices or self.attempt(group):
                i = end
                size = size * 2 if failing is None else max(1, (failing - i) // 2)
            elif end - i > 1:
                failing, size = end, (end - i) // 2
            else:
                i, size, failing = end, 1, None
        return self.choices != before

    def _with(self, group: Iterable[Option]) -> dict[str, str]:
        """Return the current choices with those options of a group that are cheaper."""
        choices = dict(self.choices)
        for option in group:
            if option.size.total < self.size_in(choices, option.layer).total:
                choices[option.layer] = option.label
        return choices

    def size_in(self, choices: Choices, layer: str) -> Size:
        """Return the size of a layer with these choices."""
        return self.sizes[layer, choices[layer]] if layer in choices else self.baseline[layer]

    def result(self) -> Assignment:
        """Return the current assignment."""
        return Assignment(
            choices={layer: self.choices[layer] for layer in self.layers if layer in self.choices},
            steps=tuple(self._steps),
            baseline=self._first,
            value=self.value_of(self.choices),
            baseline_size=size_of({}, self.sizes, self.baseline),
            size=size_of(self.choices, self.sizes, self.baseline),
            target=self.target,
        )


def _from_below(walk: _GreedySearch) -> None:
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


def _restorations(walk: _GreedySearch) -> list[dict[str, str]]:
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


def _within(walk: _GreedySearch, budget: float | None) -> None:
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
    seen = set()
    for option in options:
        if option.layer not in baseline:
            raise ValueError(f"option '{option.label}': layer '{option.layer}' has no size")
        if (option.layer, option.label) in seen:
            raise ValueError(f"option '{option.label}' of layer '{option.layer}' is given twice")
        seen.add((option.layer, option.label))
