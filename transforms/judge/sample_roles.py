"""What each sample is for: the only module that says which samples judge, check, search, rank and tune.

Samples are given by their places in the data. Ranges are measured on all of them except those held out for a
target. Folds are those of calibration (:func:`transforms.calibrate.calibration.half_of`).

==================== ==========================================================================
``judging``          candidates of moves: the first, without those that check
``checking``         samples that decide nothing: the last of the first, of few none
``summarizing``      the error in the summary: the last of the first, held out in folds
``fitting``          weights fitted to outputs of layers: all but those that check
``goal_judging``     whether a target is met: every fourth, of few samples every third or second, as for a
                     gate; the first of all in folds, if samples give ranges and nothing else
``searching``        tensors in float, finer layers for a target, masks: the first
``searching_evenly`` the same if all samples are read anyway
``ranking``          layers by the error of each: as many as a number of runs allows
``ranking_formats``  layers by the errors of each in several formats
``ranking_layers``   layers that may stay float: every second
``judging_layers``   layers that stay float: the others
``comparing``        layers of two models, to locate the loss
``is_held_out``      whether a sample judges tuned weights of layers: every n-th
``tuning_judged``    tuned models: samples that are held out, and some of the others
==================== ==========================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import TypeVar

import numpy as np

from transforms.judge.constants import (
    ENOUGH,
    FEW_SAMPLES,
    FEWEST,
    GOAL_EVERY,
    MOST_SAMPLES,
    SEARCHED_ON,
    SPARED,
    TEXTS_EVERY,
)
from transforms.run.feeds import spread

T = TypeVar("T")

FIRST = MOST_SAMPLES + FEW_SAMPLES
"""Number of first samples that include all that judge candidates and all that check."""


def taken(samples: Iterable[T], places: Collection[int]) -> list[T]:
    """Return the samples at some places, in order; those after the last place are not read."""
    end = max(places, default=-1) + 1
    return [sample for place, sample in enumerate(islice(samples, end)) if place in places]


def checking(count: int, *, texts: bool = False) -> range:
    """Return the places of the samples that decide nothing, of ``count``; none of few.

    They are the last of the first samples: those before them judge candidates. ``texts``: each sample has
    many rows, as those of language models do, so that one is enough.
    """
    first = min(count, FIRST)
    if texts:
        spared = min(FEW_SAMPLES, max(1, first // TEXTS_EVERY)) if first > FEWEST else 0
    else:
        spared = min(FEW_SAMPLES, first // SPARED) if first >= SPARED * FEWEST else 0
    return range(first - spared, first)


def summarizing(count: int, *, texts: bool = False) -> range:
    """Return the places of the samples for the error in a summary: of many, those after all that judge.

    Those of one fold (:func:`transforms.calibrate.calibration.fold_of`) run through a model with ranges of
    the other folds, so that no sample has given the ranges that it is rounded with.
    """
    most = FEW_SAMPLES if texts else ENOUGH
    last = min(count, MOST_SAMPLES + most)
    return range(max(last - most, 0), last)


def judging(count: int, *, texts: bool = False) -> range:
    """Return the places of the samples that judge candidates."""
    return range(checking(count, texts=texts).start)


def fitting(count: int, *, texts: bool = False) -> list[int]:
    """Return the places of the samples that fit weights: evenly spaced among all that may decide."""
    checked = checking(count, texts=texts)
    return spread([place for place in range(count) if place not in checked], 2 * MOST_SAMPLES)


def goal_judging(count: int, every: int = GOAL_EVERY, most: int = MOST_SAMPLES) -> list[int]:
    """Return the places of the samples that judge a target, ``most`` at most; none of few.

    They are the last of each ``goal_period``; beyond ``most``, these are not used at all.
    """
    period = goal_period(count, every)
    return list(range(period - 1, count, period))[:most] if period else []


def goal_period(count: int, every: int = GOAL_EVERY) -> int:
    """Return the period of samples whose last one is held out for a target; 0 if none is held out.

    It is ``every`` if that gives ``FEW_SAMPLES`` to judge: fewer say little of other data. Of fewer samples a
    larger share is held out, but every second at most: the others measure ranges and search, which needs as
    many. A single judging sample has no standard error: if every second are fewer than ``FEWEST``, none is
    held out, and all samples do both.
    """
    if count < 2 * FEWEST:
        return 0
    return max(2, min(every, count // FEW_SAMPLES))


def given_for_goal(judging: int, every: int = GOAL_EVERY, most: int = MOST_SAMPLES) -> int | None:
    """Return the number of samples of which ``judging`` judge a target; None if never so many do."""
    if judging > most:
        return None
    return next(
        count
        for count in range(2 * FEWEST, every * judging + 2 * FEWEST + 1)
        if len(goal_judging(count, every, most)) >= judging
    )


def searching(count: int) -> range:
    """Return the places of the samples that a search runs, the first; others decide about its result."""
    return range(min(count, SEARCHED_ON))


def searching_evenly(count: int) -> list[int]:
    """Return as many places, evenly spaced among all, for a search that reads all samples."""
    return spread(range(count), SEARCHED_ON)


def ranking(count: int, runs: int, parts: int, most: int = SEARCHED_ON) -> list[int]:
    """Return the places of the samples that rank ``parts`` layers within ``runs`` runs, one at least."""
    return spread(range(count), max(1, min(most, runs // parts)))


def ranking_formats(count: int, runs: int, parts: int) -> list[int]:
    """Return the places of samples that rank layers in several formats, the first and the last included."""
    places = np.linspace(0, count - 1, min(max(runs // parts, 1), count))
    return [int(place) for place in places]


def ranking_layers(count: int) -> range:
    """Return the places of the samples that rank layers which may stay float."""
    return range(0, count, 2)


def judging_layers(count: int) -> range:
    """Return the places of the samples that judge layers which may stay float: those that do not rank."""
    return range(1, count, 2)


def comparing(count: int) -> list[int]:
    """Return the places of the samples on which groups of layers are put back to float, evenly spaced."""
    return spread(range(count), ENOUGH)


def is_held_out(place: int, count: int, every: int) -> bool:
    """Return whether a sample of ``count`` is held out from tuning: every n-th, the last of fewer."""
    every = min(every, count)
    return place % every == every - 1


def fitted_every(count: int) -> int:
    """Return the period of held-out samples in fitting weights: 2, for few samples ``SPARED``."""
    return 2 if count >= SPARED * FEWEST else SPARED


def tuning_judged(count: int, every: int) -> tuple[list[int], list[int]]:
    """Return the places of the samples that tuned models run on, and of those among them held out.

    If few are held out, some of the others are added to show the scatter of errors.
    """
    held = [place for place in range(count) if is_held_out(place, count, every)]
    remaining = sorted(set(range(count)) - set(held))
    held = spread(held, MOST_SAMPLES)
    return sorted(held + spread(remaining, max(0, ENOUGH - len(held)))), held
