"""Oracle: errors of settings that are given, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from transforms.choose_ranges.measure_outputs import Score
from transforms.choose_ranges.search import Search
from transforms.choose_ranges.setting import setting_of
from transforms.choose_ranges.steps import steps
from transforms.scheme import Scheme, preset


class GivenErrors:
    """As Bench: settings with a word in their names have errors by sample that are so many dB lower."""

    def __init__(self, word: str, decibels: list[float], errors: list[float] | None = None) -> None:
        self._word, self._decibels = word, np.array(decibels)
        self._errors = np.array(errors or [1.0] * len(decibels))

    def score(self, setting: object, rival: Score | None = None) -> Score:
        lower = self._decibels if self._word in f"{setting}, " else np.zeros(len(self._decibels))
        return Score(
            (self._errors * 10 ** (-lower / 10))[:, None],
            np.full((len(lower), 1), 100.0),
            np.full((len(lower), 1), 1000.0),
            1,
        )

    def is_same(self, one: object, other: object) -> bool:
        return False


SPREAD = np.array([3.0, -3.0, 2.0, -2.0, 4.0, -4.0, 1.0, -1.0])


def searched(bench: GivenErrors, scheme: Scheme, ends: list[list[str]]) -> Search:
    search = Search(bench, setting_of(scheme.by_rule()))  # type: ignore[arg-type]
    for step in steps(scheme, ends, ()):
        search.take(step)
    return search


@pytest.mark.parametrize(
    ("shift", "scatter", "taken"),
    (
        (2.0, 1.0, True),
        (1.0, 1.0, True),
        (0.2, 0.3, True),
        (0.15, 0.8, True),
        (-0.5, 0.2, False),
        (-3.0, 1.0, False),
    ),
)
def test_what_other_models_gain_is_taken_unless_the_samples_are_sure_of_a_loss(
    shift: float, scatter: float, taken: bool
) -> None:
    """Pooled errors of samples that scatter lose 0.4 dB at a mean gain of 0.15; others gain 0.5 +- 0.8."""
    scheme = preset("U8S8").with_(calibrate_method="MinMax", correct_biases=False)
    bench = GivenErrors("per channel, ", [*(SPREAD * scatter + shift)])
    search = searched(bench, scheme, [])
    assert (search.best.kind.per_channel is True) is taken
    search.confirm()
    assert (search.best.kind.per_channel is True) is taken


def test_gains_of_most_samples_are_not_worth_a_loss_of_the_whole() -> None:
    """Seven samples gain 3 dB, and one with errors a hundred times larger loses 1.5."""
    scheme = preset("U8S8").with_(calibrate_method="MinMax", correct_biases=False)
    bench = GivenErrors("per channel, ", [3.0] * 7 + [-1.5], [1.0] * 7 + [100.0])
    assert searched(bench, scheme, []).best == setting_of(scheme.by_rule())


@pytest.mark.parametrize("shift", (1.0, 0.5))
def test_room_is_taken_though_no_sample_needs_it(shift: float) -> None:
    """Other models gain by it: samples that scatter need not show it."""
    scheme = preset("U8S8").with_(per_channel=False, correct_biases=False)
    search = searched(GivenErrors("Wide", [*(SPREAD + shift)]), scheme, [["y"]])
    search.confirm()
    assert search.best.methods == {"y": "Wide"}


@pytest.mark.parametrize(
    ("loss", "scatter", "kept"), ((0.2, 0.0, False), (0.2, 1.0, True), (1.0, 0.1, False), (3.0, 1.0, False))
)
def test_all_steps_together_are_held_against_the_start(loss: float, scatter: float, kept: bool) -> None:
    """Others gain 0.25 +- 0.4 by the one step that was taken: samples that scatter hardly contradict it."""
    scheme = preset("U8S8").with_(calibrate_method="MinMax", correct_biases=False)
    search = searched(GivenErrors("per channel, ", [2.0] * 8), scheme, [])
    start = search._score.errors * 10 ** (-(loss + scatter * SPREAD[:, None]) / 10)
    search._first = replace(search._score, errors=start)
    search.confirm()
    assert (search.best.kind.per_channel is True) is kept
