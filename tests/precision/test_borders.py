"""Layers of a region that are worth staying float. Oracle: the least time of all choices, by brute force."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from tests.helpers.clock import Clock
from transforms.precision.borders import seconds_of_a_number, worth_float
from transforms.run.turns import Turns
from transforms.runtime.session import RunOptions

NET = {0: [1, 3], 1: [2], 2: [3], 3: [4, 5], 4: [5], 5: [6]}


def seconds(kept: set[int], lost: dict[int, float], borders: dict[int, float]) -> float:
    """Return by how much a choice takes longer than all in float without borders."""
    converted = (i for i, readers in NET.items() if any((one in kept) != (i in kept) for one in readers))
    return sum(lost[i] for i in lost if i not in kept) + sum(borders[i] for i in converted)


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_takes_less_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lost = dict(enumerate(rng.uniform(-1, 1, 6)))
    borders = dict(enumerate(rng.uniform(0, 0.8, 6)))
    found = seconds(worth_float(range(6), lost, borders, NET), lost, borders)
    every = map(set, chain.from_iterable(combinations(range(6), n) for n in range(7)))
    assert found == pytest.approx(min(seconds(one, lost, borders) for one in every))


def test_a_layer_that_loses_nothing_stays_between_two_that_do() -> None:
    lost, line = {0: 1.0, 1: -0.3, 2: 1.0}, {0: [1], 1: [2], 2: [3]}
    assert worth_float(range(3), lost, dict.fromkeys(range(3), 0.2), line) == {0, 1, 2}
    assert worth_float(range(3), lost, dict.fromkeys(range(3), 0.1), line) == {0, 2}
    assert worth_float(range(3), lost, dict.fromkeys(range(3), 2.0), line) == set()


def test_a_number_is_timed_by_the_processor_and_by_the_clock_given() -> None:
    assert 1e-12 < seconds_of_a_number(Turns(), RunOptions(threads=1)) < 1e-7
    assert seconds_of_a_number(Clock().timer, RunOptions()) == 0.0
