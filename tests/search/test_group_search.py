"""Oracle: sets worked out one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.search.group_search import add_in_groups, fewest, without_needless


def one_by_one(weights: Sequence[int], limit: int) -> list[int]:
    """Add each number that keeps the sum within the limit."""
    added: list[int] = []
    for place, weight in enumerate(weights):
        if sum(weights[i] for i in added) + weight <= limit:
            added.append(place)
    return added


@pytest.mark.parametrize("together", [False, True])
@given(weights=st.lists(st.integers(0, 9), max_size=20), limit=st.integers(0, 60))
def test_it_finds_what_adding_one_by_one_finds(together: bool, weights: list[int], limit: int) -> None:
    def _holds(added: Sequence[int]) -> bool:
        return sum(weights[i] for i in added) <= limit

    assert add_in_groups(range(len(weights)), _holds, together=together) == one_by_one(weights, limit)


@pytest.mark.parametrize("together", [False, True])
def test_one_that_fails_among_many_costs_few_calls(together: bool) -> None:
    for bad in range(64):
        calls: list[int] = []

        def _holds(added: Sequence[int], bad: int = bad, calls: list[int] = calls) -> bool:
            calls.append(1)
            return bad not in added

        assert add_in_groups(range(64), _holds, together=together) == [i for i in range(64) if i != bad]
        assert len(calls) <= 3 * 6


def test_nothing_is_asked_of_nothing() -> None:
    assert add_in_groups([], lambda added: pytest.fail("asked")) == []


@given(weights=st.lists(st.integers(0, 9), min_size=1, max_size=20), least=st.integers(0, 60))
def test_few_that_are_enough_are_found_of_the_first(weights: list[int], least: int) -> None:
    def _holds(kept: Sequence[int]) -> bool:
        return sum(weights[i] for i in kept) >= least

    found = fewest(range(len(weights)), _holds)
    enough = next((n for n in range(1, len(weights) + 1) if _holds(range(n))), len(weights))
    assert found == sorted(set(found)) and set(found) <= set(range(enough))
    assert _holds(found) == _holds(range(len(weights)))
    if _holds(found):
        assert not any(_holds([i for i in found if i != one]) for one in found)
    else:
        assert found == list(range(len(weights)))


def test_the_fewest_of_many_cost_few_calls() -> None:
    for enough in range(1, 200):
        calls: list[int] = []

        def _holds(kept: Sequence[int], enough: int = enough, calls: list[int] = calls) -> bool:
            calls.append(1)
            return kept[:enough] == range(enough) or list(kept) == list(range(enough))

        assert fewest(range(200), _holds) == list(range(enough))
        assert len(calls) <= 2 * 8 + enough  # doubling, halving, and each that cannot be given up


@given(weights=st.lists(st.integers(0, 9), max_size=20), least=st.integers(0, 60))
def test_what_is_needless_is_given_up_from_the_last_on(weights: list[int], least: int) -> None:
    names, left = [str(i) for i in range(len(weights))], list(range(len(weights)))
    for place in left[::-1]:
        others = [i for i in left if i != place]
        left = others if sum(weights[i] for i in others) >= least else left

    def _holds(kept: Sequence[str]) -> bool:
        return sum(weights[int(name)] for name in kept) >= least

    assert without_needless(names, _holds) == [str(i) for i in left]
