"""Oracle: errors written down by hand."""

from __future__ import annotations

import numpy as np
import pytest

from transforms.origins.carries_half import carries_half


def holds(whole: list[float], left: list[float], those: list[float]) -> bool:
    return carries_half(*(np.array(values, np.float64) for values in (whole, left, those)))


@pytest.mark.parametrize(
    ("left", "those", "expected"),
    [
        (0.5, 0.6, True),  # half, and more than the others
        (0.51, 0.6, False),  # less than half
        (0.5, 0.4, False),  # less than the others
        (0.0, 1.0, True),
    ],
)
def test_equal_samples(left: float, those: float, expected: bool) -> None:
    assert holds([1.0] * 4, [left] * 4, [those] * 4) == expected
    assert holds([1.0], [left], [those]) == expected, "a sample alone has no standard error"


def test_one_sample_that_holds_nearly_all_is_not_enough() -> None:
    """Of the sum, a thousandth is left; of each other sample, nine tenths are."""
    whole = [1000.0, 1.0, 1.0, 1.0]
    assert not holds(whole, [1.0, 0.9, 0.9, 0.9], [999.0, 0.1, 0.1, 0.1])
    assert not holds(whole, [900.0, 0.0, 0.0, 0.0], [100.0, 1.0, 1.0, 1.0])


def test_what_may_be_chance_does_not_count() -> None:
    whole = [1.0] * 4
    assert holds(whole, [0.38, 0.42, 0.4, 0.4], [0.6] * 4)
    assert not holds(whole, [0.0, 0.8, 0.0, 0.8], [0.6] * 4)


def test_samples_without_an_error_say_nothing() -> None:
    assert holds([0.0, 1.0], [0.0, 0.4], [0.0, 0.6])
    assert holds([0.0], [0.0], [0.0])
    assert not holds([1.0], [float("nan")], [0.0])
