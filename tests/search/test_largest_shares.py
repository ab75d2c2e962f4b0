"""Oracle: shares that add up to the error, of which every prefix is tried.

Things of the largest shares are the best ones to remove, whatever their number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence, Set

import pytest

from transforms.search.group_search import largest_shares, shares_of_parts

PRICE = 3.0


class Problem:
    """Shares of an error, and how often it was measured."""

    def __init__(self, shares: Sequence[float], floor: float = 0.001) -> None:
        total = floor + sum(shares)
        self.shares, self.floor, self.looks = [one / total for one in shares], floor / total, 0

    def error(self, removed: Set[int]) -> float:
        """Return what is left of the error."""
        self.looks += 1
        return self.floor + math.fsum(one for i, one in enumerate(self.shares) if i not in removed)

    def solve(self, most: int = 1000) -> list[int]:
        """Return what the search finds."""
        return largest_shares(len(self.shares), self.error, PRICE, most)

    def best(self) -> list[int]:
        """Return the best of all prefixes of the order by size."""
        order = sorted(range(len(self.shares)), key=lambda i: -self.shares[i])

        def _value(count: int) -> float:
            removed = set(order[:count])
            return -10 * math.log10(self.error(removed)) - PRICE * count

        return order[: max(range(len(order) + 1), key=_value)]


@pytest.mark.parametrize("seed", range(40))
def test_the_best_ones_are_found(seed: int) -> None:
    """Shares over four decades: few hold most of the error."""
    draw = random.Random(seed)
    shares = [10 ** draw.uniform(-4, 0) for _ in range(draw.randint(1, 40))]
    problem = Problem(shares, floor=10 ** draw.uniform(-4, -1))
    assert problem.solve() == problem.best()


def test_one_among_many_takes_a_logarithm_of_looks() -> None:
    problem = Problem([1e-6] * 700 + [1.0] + [1e-6] * 300)
    assert problem.solve() == [700]
    assert problem.looks <= 1 + 2 * math.ceil(math.log2(1001))


def test_an_error_from_everywhere_takes_few_looks() -> None:
    problem = Problem([1.0] * 1000, floor=50.0)
    assert problem.solve() == []
    assert problem.looks < 20


def test_what_nothing_removes_takes_one_look() -> None:
    problem = Problem([0.1, 0.2], floor=1.0)
    assert problem.solve() == []
    assert problem.looks == 1


def test_looks_have_a_limit() -> None:
    """What is found by then, and nothing that may be one of several things."""
    found = []
    for most in range(1, 30):
        problem = Problem([0.001] * 20 + [1.0] + [0.001] * 20 + [0.5])
        found.append(problem.solve(most))
        assert problem.looks <= most
    assert found[0] == [] and found[-1] == [20, 41]
    assert all(set(one) <= {20, 41} for one in found)


def test_nothing_at_all() -> None:
    assert largest_shares(0, lambda removed: 1.0, PRICE, 10) == []


def test_an_error_that_grows_is_no_share() -> None:
    """Errors of a tensor and of what is made of it may cancel: without one, the other is larger."""
    assert largest_shares(4, lambda removed: 1.0 + len(removed), PRICE, 100) == []


@pytest.mark.parametrize("most", [1, 9, 1000])
def test_parts_hold_all_shares_however_few_looks_there_are(most: int) -> None:
    problem = Problem([0.01] * 20 + [1.0, 0.5] + [0.01] * 10)
    found, floor = shares_of_parts(32, problem.error, PRICE, most)
    assert sorted(place for part in found for place in part) == list(range(32))
    assert problem.looks <= most and floor + sum(found.values()) == pytest.approx(1)
    for part, share in found.items():
        assert share == pytest.approx(sum(problem.shares[place] for place in part))
