"""Oracle: errors of settings that are given, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.choose_ranges.measure_outputs import Score
from transforms.choose_ranges.search import Search
from transforms.choose_ranges.setting import setting_of
from transforms.choose_ranges.steps import steps
from transforms.scheme import preset


class GivenErrors:
    """As Bench: settings with a scale per channel have errors by sample that are so many dB lower."""

    def __init__(self, decibels: list[float]) -> None:
        self._decibels = np.array(decibels)

    def score(self, setting: object, rival: Score | None = None) -> Score:
        lower = self._decibels if "per channel, " in f"{setting}, " else np.zeros(len(self._decibels))
        return Score(10 ** (-lower / 10)[:, None], np.full((len(lower), 1), 100.0), 1)

    def is_same(self, one: object, other: object) -> bool:
        return False


@pytest.mark.parametrize(
    ("shift", "taken", "kept"), ((2.0, True, True), (-0.3, True, False), (-3.0, False, False))
)
def test_what_other_models_gain_is_taken_and_confirmed(shift: float, taken: bool, kept: bool) -> None:
    """Samples that scatter by 3 dB, with a mean that is too little, or enough, to tell."""
    scheme = preset("U8S8").with_(calibrate_method="MinMax", correct_biases=False)
    spread = np.array([3.0, -3.0, 2.0, -2.0, 4.0, -4.0, 1.0, -1.0])
    bench = GivenErrors(list(spread + shift))
    search = Search(bench, setting_of(scheme.by_rule()))  # type: ignore[arg-type]
    for step in steps(scheme, []):
        search.take(step)
    assert (search.best.kind.per_channel is True) is taken
    search.confirm()
    assert (search.best.kind.per_channel is True) is kept
