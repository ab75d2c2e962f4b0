"""Which of many changes can be made together: one search in groups, for all that assigns formats to parts.

As in adaptive group testing (R. Dorfman, The Detection of Defective Members of Large Populations, 1943), a
group that fails is halved, so that a few changes that fail among many cost few evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def add_in_groups(
    items: Sequence[T], holds: Callable[[Sequence[T]], bool], *, together: bool = False
) -> list[T]:
    """Return the items that can be added one after the other while ``holds`` is true of all that were added.

    Items are added in their order, in groups that double while they hold; a group that does not is halved
    down to the item that fails, which is skipped: some 2 log2(n) calls for each that is. ``together``: the
    first group is all items instead of one, which takes fewer calls where most can be added. For a number and
    a bound of it: ``lambda added: target.holds(evaluate(frozenset(added)))``.
    """
    added: list[T] = []
    place, size = 0, len(items) if together else 1
    failing: int | None = None  # end of a group that failed
    while place < len(items):
        end = min(place + size, len(items))
        group = [*added, *items[place:end]]
        if holds(group):
            added, place = group, end
            size = size * 2 if failing is None else max(1, (failing - place) // 2)
        elif end - place > 1:
            failing, size = end, (end - place) // 2
        else:
            place, size, failing = end, 1, None
    return added
