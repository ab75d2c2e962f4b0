"""Choosing formats of layers so that the model takes less time and meets a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from transforms.search.greedy_search import Assignment, Evaluate, GreedySearch, Step, check_options
from transforms.search.knapsack import Option, Size
from transforms.search.target import Target

Saved = Mapping[tuple[str, str], float]
"""Seconds that a layer saves in a format, by layer and label, against its format in the baseline."""


def assign_by_time(
    options: Sequence[Option],
    baseline: Mapping[str, Size],
    saved: Saved,
    evaluate: Evaluate,
    target: Target | None = None,
    *,
    progress: Callable[[Step], None] | None = None,
) -> Assignment:
    """Return formats with which layers save time and the model meets the target.

    Options that are not in ``saved``, or save nothing there, are left out. The others are tried by rising
    error per second saved, of like ones the one that saves more first; one that breaks the target is skipped.
    A layer that was moved goes on to a format that saves more, if that holds too. The other arguments are
    those of :func:`transforms.search.assign_precision.assign`, and so are the errors.
    """
    check_options(options, baseline)
    faster = [one for one in options if saved.get((one.layer, one.label), 0.0) > 0]

    def _rank(option: Option) -> tuple[float, float]:
        seconds = saved[option.layer, option.label]
        return (option.error / seconds if math.isfinite(option.error) else math.inf), -seconds

    def _cost(layer: str, label: str | None) -> float:
        return 0.0 if label is None else -saved[layer, label]

    walk = GreedySearch(faster, baseline, evaluate, target, progress, _rank, _cost)
    walk.descend(together=target is None)
    return walk.result()


def accepted_choices(found: Assignment) -> list[tuple[dict[str, str], Step]]:
    """Return the choices of every model that was accepted, with its step, the last first."""
    choices: dict[str, str] = {}
    accepted = []
    for step in found.steps:
        if step.accepted:
            moved = {layer: label for layer, label in step.moved if label is not None}
            back = {layer for layer, label in step.moved if label is None}
            choices = {layer: label for layer, label in (choices | moved).items() if layer not in back}
            accepted.append((choices, step))
    return accepted[::-1]


def last_that_is_faster(found: Assignment, is_faster: Callable[[Mapping[str, str]], bool]) -> Assignment:
    """Return the assignment with the choices of the last accepted model that is faster than the baseline.

    Models are asked for from the last back; if none is faster, the choices are those of the baseline.
    """
    for choices, step in accepted_choices(found):
        if not choices or is_faster(choices):
            return replace(found, choices=choices, value=step.value, size=step.size)
    raise AssertionError("the first step is the baseline, which is accepted")
