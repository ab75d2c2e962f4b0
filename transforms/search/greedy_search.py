"""A search that moves options one after the other, and keeps each model that holds the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transforms.search.knapsack import Option, Size, size_of
from transforms.search.target import Target

Choices = Mapping[str, str]
"""The formats of moved layers, by LayerRule.label; other layers have those of the baseline."""

Evaluate = Callable[[Choices], float]
"""Returns the metric of the model with these formats."""

Cost = Callable[[str, str | None], float]
"""Returns what a layer costs in a format, None for that of the baseline; less is better."""


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


class GreedySearch:
    """A current assignment, which holds unless it was forced, and the trials so far."""

    def __init__(
        self,
        options: Sequence[Option],
        baseline: Mapping[str, Size],
        evaluate: Evaluate,
        target: Target | None,
        progress: Callable[[Step], None] | None,
        rank: Callable[[Option], tuple[float, float]],
        cost: Cost | None = None,
    ) -> None:
        """Evaluate the baseline; TargetError if it breaks the target.

        Options are tried in the order of ``rank``, and taken if they cost less (None: in bits) than what the
        layer has.
        """
        self.options = sorted(options, key=rank)
        self.baseline = baseline
        self.layers = list(dict.fromkeys(option.layer for option in options))
        self.sizes = {(option.layer, option.label): option.size for option in options}
        self.choices: dict[str, str] = {}
        self._evaluate, self._progress = evaluate, progress
        self._cost = cost or (lambda layer, label: self.size_with(layer, label).total)
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
        """Try all options once in the order of their rank, in groups; return whether any is accepted.

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
            layer = option.layer
            if self._cost(layer, option.label) < self._cost(layer, choices.get(layer)):
                choices[layer] = option.label
        return choices

    def size_in(self, choices: Choices, layer: str) -> Size:
        """Return the size of a layer with these choices."""
        return self.size_with(layer, choices.get(layer))

    def size_with(self, layer: str, label: str | None) -> Size:
        """Return the size of a layer in a format, None for the baseline's."""
        return self.baseline[layer] if label is None else self.sizes[layer, label]

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


def checked_target(target: Target, baseline: float) -> Target:
    """Return the target as an absolute bound; TargetError if the value of the baseline breaks it."""
    bound = target.at(baseline)
    bound.check(baseline, "the model before anything is moved")
    return bound


def check_options(options: Iterable[Option], baseline: Mapping[str, Size]) -> None:
    """Raise ValueError for options of unknown layers, or given twice."""
    seen = set()
    for option in options:
        if option.layer not in baseline:
            raise ValueError(f"option '{option.label}': layer '{option.layer}' has no size")
        if (option.layer, option.label) in seen:
            raise ValueError(f"option '{option.label}' of layer '{option.layer}' is given twice")
        seen.add((option.layer, option.label))
