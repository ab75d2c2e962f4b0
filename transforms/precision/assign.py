"""Choosing formats of layers so that the model as a whole meets a target.

Errors of single layers determine the order of trials; only the measured value of the actual mixed model
decides whether the target holds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from transforms.search.group_search import add_in_groups
from transforms.search.target import Target, TargetError

Choices = Mapping[str, str]
"""The formats of moved layers, by LayerRule.label; other layers have those of the baseline."""

Evaluate = Callable[[Choices], float]
"""Returns the metric of the model with these formats."""

_Cost = Callable[[str, str | None], float]
"""What a layer costs in a format, None for that of the baseline, in bits."""

_ROUNDING = 1e-12
"""Sums of a thousand numbers in float64 are exact to this share."""


@dataclass(frozen=True)
class Size:
    """Bits of a layer's weights, and of the activations that it reads for one sample."""

    weight: float
    activation: float = 0.0

    @property
    def total(self) -> float:
        """Both together: fewer bits are cheaper."""
        return self.weight + self.activation


@dataclass(frozen=True)
class Option:
    """Formats that a layer may have, by their ``label``: the output error that they add, and their size."""

    layer: str
    label: str
    error: float
    size: Size


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
    *,
    budget: float | None = None,
    progress: Callable[[Step], None] | None = None,
) -> Assignment:
    """Return formats with which the model meets the target and keeps to the budget.

    Options are moved in the order of rising error per bit saved, of weights with a ``budget``, which is in
    bits of all weights, else of all operands: as many as the budget needs, or all of them. Each with which
    the target does not hold is skipped (:func:`transforms.search.group_search.add_in_groups`); without a
    target none is.

    ``options`` are the formats that layers may get, ``baseline`` the size of each layer in the formats that
    the target is first checked with. A relative target is relative to the metric of the baseline.
    ``evaluate`` is called once for each model. ``progress`` receives each step.

    Raises TargetError if the baseline breaks the target, or for a budget that is too small.
    """
    sizes: dict[tuple[str, str | None], Size] = {(one.layer, one.label): one.size for one in options}
    sizes |= {(layer, None): size for layer, size in baseline.items()}

    def _cost(layer: str, label: str | None) -> float:
        size = sizes[layer, label]
        return size.total if budget is None else size.weight

    trials = _Trials(options, sizes, evaluate, target, progress, _cost)
    order = by_error_per_cost(options, _cost)
    if budget is not None:
        order = _within(order, trials, budget)
    add_in_groups(order, trials.holds, together=True)
    return trials.result()


def by_error_per_cost(options: Iterable[Option], cost: _Cost) -> list[Option]:
    """Return the moves of all layers to options of less cost, of rising error per cost saved.

    Each is relative to the one of its layer before, along the lower convex hull of the layer's options: in
    this order the errors of any prefix are the least of all that save as much. Infinite errors are left out.
    """
    by_layer: dict[str, list[Option]] = {}
    for option in options:
        if math.isfinite(option.error):
            by_layer.setdefault(option.layer, []).append(option)

    def _step(option: Option, now: float, error: float) -> tuple[float, float, Option]:
        saved = now - cost(option.layer, option.label)
        return (option.error - error) / saved, -saved, option

    steps: list[tuple[float, float, Option]] = []
    for layer, own in by_layer.items():
        now, error = cost(layer, None), 0.0
        while cheaper := [one for one in own if cost(layer, one.label) < now]:
            steps.append(min((_step(one, now, error) for one in cheaper), key=itemgetter(0, 1)))
            now, error = cost(layer, steps[-1][2].label), steps[-1][2].error
    return [option for _, _, option in sorted(steps, key=itemgetter(0, 1))]


def least_bits(options: Iterable[Option], baseline: Mapping[str, Size]) -> float:
    """Return the fewest bits that all weights can take, at any finite error."""
    least = {layer: size.weight for layer, size in baseline.items()}
    for option in options:
        if math.isfinite(option.error):
            least[option.layer] = min(least[option.layer], option.size.weight)
    return math.fsum(least.values())


class _Trials:
    """A current assignment, which holds, and the models tried so far."""

    def __init__(
        self,
        options: Iterable[Option],
        sizes: Mapping[tuple[str, str | None], Size],
        evaluate: Evaluate,
        target: Target | None,
        progress: Callable[[Step], None] | None,
        cost: _Cost,
    ) -> None:
        """Evaluate the baseline; TargetError if it breaks the target."""
        self._layers = [layer for layer, label in sizes if label is None]
        self._sizes, self._cost = sizes, cost
        self._evaluate, self._progress = evaluate, progress
        self._known: dict[frozenset[tuple[str, str]], float] = {}
        self._steps: list[Step] = []
        self._order = list(dict.fromkeys(option.layer for option in options))
        self.choices: dict[str, str] = {}
        first = self._value({})
        self._target = target.checked(first) if target else None
        self._attempt({})

    def holds(self, moved: Iterable[Option]) -> bool:
        """Evaluate the model with options, the later of a layer if it costs less, and return if it holds."""
        choices = self.choices_of(moved)
        return choices == self.choices or self._attempt(choices)

    def choices_of(self, moved: Iterable[Option]) -> dict[str, str]:
        """Return the choices that options come to."""
        choices: dict[str, str] = {}
        for option in moved:
            if self._cost(option.layer, option.label) < self._cost(option.layer, choices.get(option.layer)):
                choices[option.layer] = option.label
        return {layer: choices[layer] for layer in self._order if layer in choices}

    def size(self, choices: Choices) -> Size:
        """Return the size of all layers with these choices."""
        present = [self._sizes[layer, choices.get(layer)] for layer in self._layers]
        weights, activations = (one.weight for one in present), (one.activation for one in present)
        return Size(math.fsum(weights), math.fsum(activations))

    def result(self) -> Assignment:
        """Return the current assignment."""
        first = self._steps[0]
        value, size = self._value(self.choices), self.size(self.choices)
        steps = tuple(self._steps)
        return Assignment(self.choices, steps, first.value, value, first.size, size, self._target)

    def _value(self, choices: Choices) -> float:
        key = frozenset(choices.items())
        if key not in self._known:
            self._known[key] = self._evaluate(dict(choices))
        return self._known[key]

    def _attempt(self, choices: dict[str, str]) -> bool:
        value = self._value(choices)
        accepted = self._target is None or self._target.holds(value)
        changed = [layer for layer in self._order if choices.get(layer) != self.choices.get(layer)]
        moved = tuple((layer, choices.get(layer)) for layer in changed)
        self._steps.append(Step(moved, value, accepted, self.size(choices)))
        if self._progress:
            self._progress(self._steps[-1])
        if accepted:
            self.choices = choices
        return accepted


def _within(order: Sequence[Option], trials: _Trials, budget: float) -> list[Option]:
    """Return the first options with which weights keep to a budget, without those that it does not need."""

    def _weight(moved: Iterable[Option]) -> float:
        return trials.size(trials.choices_of(moved)).weight

    room = budget * (1 + _ROUNDING)
    least = _weight(order)
    if least > room:
        raise TargetError(f"a budget of {budget:.10g} bits cannot be met: the weights take {least:.10g}")
    count = bisect_left(range(len(order)), True, key=lambda count: _weight(order[:count]) <= room)
    kept = list(order[:count])
    for option in sorted(kept, key=lambda one: -one.error):
        rest = [one for one in kept if one is not option]
        if _weight(rest) <= room:
            kept = rest
    return kept
