"""Oracle: sets worked out one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.search.group_search import add_in_groups


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
