"""Oracle: the mean of two normal distributions, weighed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.choose_ranges.measure_outputs import Gain, Score, drags, falls, gain, is_hopeless


def test_what_samples_show_is_weighed_with_other_models() -> None:
    """Samples of a half share its ranges: a standard error of 0.4 dB counts as 0.8."""
    shown, expected = Gain(-1.0, 0.4), (0.5, 0.3)
    weights = 1 / 0.8**2, 1 / 0.3**2
    by_hand = (-1.0 * weights[0] + 0.5 * weights[1]) / sum(weights)
    assert shown.shrunk(*expected) == pytest.approx(by_hand)
    assert Gain(-1.0, 0.01).shrunk(*expected) == pytest.approx(-1.0, abs=0.01)
    assert Gain(-1.0, np.inf).shrunk(*expected) == 0.5


@pytest.mark.parametrize(("before", "expected"), ((0.5, False), (100.0, True)))
def test_what_two_samples_saturate_decides_nothing_alone(before: float, expected: bool) -> None:
    """Probabilities lose 12 dB on both samples, what they are made of gains 3 dB, or loses 20."""
    signal = np.full((8, 2), 1000.0)
    sizes = np.full((8, 2), 100.0)
    rival = Score(np.ones((8, 2)), signal, sizes, 1)
    start = Score(np.tile([16.0, before], (2, 1)), signal[:2], sizes[:2], 1)
    assert is_hopeless(start, rival) is expected


@pytest.mark.parametrize(("numbers", "expected"), ((1, False), (1000, True)))
def test_few_numbers_are_a_matter_of_chance(numbers: int, expected: bool) -> None:
    """Two samples that lose 12 dB, eight that lose 3, and an output of two that loses 3 to the other.

    The errors of eight single numbers differ by 3 dB from one draw to the next, as do 8.7 / sqrt(8).
    """
    signal, sizes = np.full((8, 1), 1000.0), np.full((8, 1), float(numbers))
    old = Score(np.ones((8, 1)), signal, sizes, 1)
    lost = Score(np.full((2, 1), 16.0), signal[:2], sizes[:2], 1)
    assert is_hopeless(lost, old) is expected
    assert falls(Score(np.full((8, 1), 2.0), signal, sizes, 1), old) is expected
    pair = [np.repeat(array, 2, axis=1) for array in (np.ones((8, 1)), signal, sizes)]
    two, other = Score(*pair, 2), Score(pair[0] * [2.0, 0.1], *pair[1:], 2)
    assert drags(other, two) is expected


@pytest.mark.filterwarnings("error")
def test_an_output_that_is_zero_says_nothing() -> None:
    """One whose float model makes zeros only, and whose quantized model does not."""
    signal, sizes = np.tile([1000.0, 0.0], (8, 1)), np.full((8, 2), 100.0)
    old, new = (Score(np.tile([error, error], (8, 1)), signal, sizes, 2) for error in (2.0, 1.0))
    first = [Score(one.errors[:, :1], signal[:, :1], sizes[:, :1], 1) for one in (new, old)]
    assert gain(new, old).decibels == pytest.approx(gain(*first).decibels) == pytest.approx(3.01, abs=0.01)
    assert falls(old, new) and not falls(new, old)
