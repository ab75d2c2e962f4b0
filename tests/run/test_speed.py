"""What ratios of times say. Oracle: quartiles by hand."""

from __future__ import annotations

import pytest

from transforms.run.speed import Speed, speed
from transforms.run.turns import Timing


@pytest.mark.parametrize(
    ("low", "median", "high", "said"),
    [
        (0.64, 0.66, 0.69, Speed.FASTER),
        (1.1, 1.2, 1.3, Speed.SLOWER),
        (1.0, 1.0, 1.0, Speed.SAME),
        (0.97, 1.01, 1.05, Speed.SAME),
        (0.98, 1.08, 1.1, Speed.SAME),  # a quarter of the rounds was faster
        (1.01, 1.02, 1.04, Speed.SAME),  # less than 3 %
        (0.96, 0.98, 0.99, Speed.SAME),
        (0.85, 0.97, 1.02, Speed.UNKNOWN),
        (0.98, 1.1, 1.2, Speed.UNKNOWN),
        (0.14, 20.7, 33.93, Speed.UNKNOWN),
        (1.2, 1.5, 1.9, Speed.UNKNOWN),
        (0.4, 0.5, 0.7, Speed.UNKNOWN),
    ],
)
def test_speed(low: float, median: float, high: float, said: Speed) -> None:
    assert speed(Timing(median, low, high, 9)) is said


@pytest.mark.parametrize("shape", [(0.64, 0.66, 0.69), (0.97, 1.01, 1.05), (0.98, 1.1, 1.2), (0.4, 0.5, 0.7)])
def test_the_other_way_round_it_says_the_opposite(shape: tuple[float, float, float]) -> None:
    low, median, high = shape
    opposite = {Speed.FASTER: Speed.SLOWER, Speed.SLOWER: Speed.FASTER}
    found = speed(Timing(median, low, high, 9))
    assert speed(Timing(1 / median, 1 / high, 1 / low, 9)) is opposite.get(found, found)
