"""Assign formats to layers so that the whole model meets a target or a budget.

Errors of single layers determine the order of trials; the measured metric of the mixed model decides whether
the target holds.
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
"""By layer, the label of the formats that it is moved to (LayerRule.label); others keep the baseline's."""

Evaluate = Callable[[Choices], float]
"""Returns the metric of the model with these formats."""

_Cost = Callable[[str, str | None], float]
"""Bits of a layer in the formats of a label, None for those of the baseline."""

_ROUNDING = 1e-12
"""Relative error bound of a sum of a thousand numbers in float64."""


@dataclass(frozen=True)
class Size:
    """Bits of a layer's weights, and of its input activations for one sample."""

    weight: float
    activation: float = 0.0

    @property
    def total(self) -> float:
        """Bits of weights and activations together."""
        return self.weight + self.activation


@dataclass(frozen=True)
class Option:
    """Formats that a layer may have, by their ``label``, with the output error they add and their size."""

    layer: str
    label: str
    error: float
    size: Size


@dataclass(frozen=True)
class Step:
    """A model that was tried: its metric, its size, and its changes from the last accepted model.

    ``moved``: layers and the labels of their formats, None for those of the baseline.
    """

    moved: tuple[tuple[str, str | None], ...]
    value: float
    accepted: bool
    size: Size


@dataclass(frozen=True)
class Assignment:
    """The chosen formats, with the metric and size of the model and of the baseline.

    ``steps``: all trials in order, the baseline first. ``target``: what ``value`` meets, with an absolute
    limit; None without a target.
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
    """Return formats with which the model meets the target and stays within the budget.

    Layers are moved to options in the order of rising error per bit saved: bits of weights if there is a
    ``budget`` (bits of all weights together), else of all operands. With a budget, as many are moved as it
    needs, else all. An option with which the target does not hold is skipped
    (:func:`transforms.search.group_search.add_in_groups`).

    ``options``: the formats that layers may get; ``baseline``: the size of each layer in its formats before
    any move. A relative target is relative to the metric of the baseline. ``evaluate`` is called once for
    each model. ``progress`` receives each step.

    Raises TargetError if the baseline breaks the target, or for a budget that is too small.
    """
    sizes: dict[tuple[str, str | None], Size] = {
        (option.layer, option.label): option.size for option in options
    }
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
    """Return the moves of all layers to cheaper options, in the order of rising error per cost saved.

    Moves of one layer follow the lower convex hull of its options, each relative to the move before it: in
    this order any prefix has the least error of all choices that save as much. Options of infinite error are
    left out.
    """
    by_layer: dict[str, list[Option]] = {}
    for option in options:
        if math.isfinite(option.error):
            by_layer.setdefault(option.layer, []).append(option)

    def _step(option: Option, bits: float, error: float) -> tuple[float, float, Option]:
        saved = bits - cost(option.layer, option.label)
        return (option.error - error) / saved, -saved, option

    steps: list[tuple[float, float, Option]] = []
    for layer, available in by_layer.items():
        bits, error = cost(layer, None), 0.0
        while cheaper := [option for option in available if cost(layer, option.label) < bits]:
            steps.append(min((_step(option, bits, error) for option in cheaper), key=itemgetter(0, 1)))
            bits, error = cost(layer, steps[-1][2].label), steps[-1][2].error
    return [option for _, _, option in sorted(steps, key=itemgetter(0, 1))]


def least_bits(options: Iterable[Option], baseline: Mapping[str, Size]) -> float:
    """Return the fewest bits of all weights together, over options of finite error."""
    least = {layer: size.weight for layer, size in baseline.items()}
    for option in options:
        if math.isfinite(option.error):
            least[option.layer] = min(least[option.layer], option.size.weight)
    return math.fsum(least.values())


class _Trials:
    """The current assignment, which meets the target, and the models tried so far."""

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
        self._values: dict[frozenset[tuple[str, str]], float] = {}
        self._steps: list[Step] = []
        self._order = list(dict.fromkeys(option.layer for option in options))
        self.choices: dict[str, str] = {}
        first = self._value({})
        self._target = target.checked(first) if target else None
        self._attempt({})

    def holds(self, moved: Iterable[Option]) -> bool:
        """Evaluate the model with these options; return whether the target holds, and keep them if so."""
        choices = self.choices_of(moved)
        return choices == self.choices or self._attempt(choices)

    def choices_of(self, moved: Iterable[Option]) -> dict[str, str]:
        """Return the formats by layer: of several options of a layer, the cheapest."""
        choices: dict[str, str] = {}
        for option in moved:
            if self._cost(option.layer, option.label) < self._cost(option.layer, choices.get(option.layer)):
                choices[option.layer] = option.label
        return {layer: choices[layer] for layer in self._order if layer in choices}

    def size(self, choices: Choices) -> Size:
        """Return the size of all layers with these choices."""
        sizes = [self._sizes[layer, choices.get(layer)] for layer in self._layers]
        weights, activations = (size.weight for size in sizes), (size.activation for size in sizes)
        return Size(math.fsum(weights), math.fsum(activations))

    def result(self) -> Assignment:
        """Return the current assignment."""
        first = self._steps[0]
        value, size = self._value(self.choices), self.size(self.choices)
        steps = tuple(self._steps)
        return Assignment(self.choices, steps, first.value, value, first.size, size, self._target)

    def _value(self, choices: Choices) -> float:
        key = frozenset(choices.items())
        if key not in self._values:
            self._values[key] = self._evaluate(dict(choices))
        return self._values[key]

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
    """Return the shortest prefix of the options that meets a budget of weights, without needless ones."""

    def _weight(moved: Iterable[Option]) -> float:
        return trials.size(trials.choices_of(moved)).weight

    room = budget * (1 + _ROUNDING)
    least = _weight(order)
    if least > room:
        raise TargetError(f"a budget of {budget:.10g} bits cannot be met: the weights take {least:.10g}")
    count = bisect_left(range(len(order)), True, key=lambda count: _weight(order[:count]) <= room)
    options = list(order[:count])
    for option in sorted(options, key=lambda option: -option.error):
        rest = [other for other in options if other is not option]
        if _weight(rest) <= room:
            options = rest
    return options
