"""Group searches: which of many changes can be made together, and which of many items cause an error.

As in adaptive group testing (R. Dorfman, The Detection of Defective Members of Large Populations, 1943), a
group that fails is halved, so that a few failing changes among many cost few evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TypeVar

from ops.metrics import decibels

T = TypeVar("T")

Removed = Set[int]
Error = Callable[[Removed], float]
"""Returns the error that is left with some items removed, as a share of that with none removed."""

MOST_PARTS = 200
"""Most layers that are searched one by one; of more, those after a dot product are grouped with it."""

_LEAST = 1e-12


def add_in_groups(
    items: Sequence[T], holds: Callable[[Sequence[T]], bool], *, together: bool = False
) -> list[T]:
    """Return the items that can be added one after the other such that ``holds`` is true for all added ones.

    Items are added in order, in groups that double while they hold; a group that does not hold is halved down
    to the failing item, which is skipped: about 2 log2(n) calls for each failing item. ``together``: begin
    with all items as one group, which takes fewer calls if most can be added. For a metric and its target:
    ``lambda added: target.holds(evaluate(frozenset(added)))``.
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


def joined(items: Sequence[T], begins: Callable[[T], bool], most: int = MOST_PARTS) -> list[list[T]]:
    """Return the items one by one, or if they are more than ``most``, in groups of successive items.

    A group begins at each item of which ``begins`` is true. If there are still more than ``most`` groups,
    neighbors are joined evenly.
    """
    if len(items) <= most:
        return [[item] for item in items]
    groups: list[list[T]] = []
    for item in items:
        if begins(item) or not groups:
            groups.append([])
        groups[-1].append(item)
    size = -(-len(groups) // most)
    return [[item for group in groups[i : i + size] for item in group] for i in range(0, len(groups), size)]


def fewest(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return few of the first items for which ``holds`` is true, one at least; all if it is true of no fewer.

    Doubling and bisection find the shortest prefix; then items that are not needed are dropped, the last
    first.
    """
    low, high = 0, 1
    while high < len(items) and not holds(items[:high]):
        low, high = high, high * 2
    high = min(high, len(items))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(items[:middle]) else (middle, high)
    return without_needless(items[:high], holds)


def without_needless(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return the items without those that ``holds`` does not need, tried from the last to the first."""
    places = range(len(items))

    def _holds_without(given_up: Sequence[int]) -> bool:
        return holds([items[place] for place in places if place not in given_up])

    needless = set(add_in_groups(places[::-1], _holds_without))
    return [items[place] for place in places if place not in needless]


def largest_shares(count: int, error: Error, price: float, most: int) -> list[int]:
    """Return the indices of the items to remove, of ``count``, the largest share of the error first.

    On average, each has to lower the error by ``price`` dB. ``most``: how many errors may be measured; items
    that were not separated by then are not returned.

    Shares of an error are additive while they are small compared with the signal, so each is measured in a
    model without any other error. A part is halved only while it could be worth its price if one item held
    all of its share: if an error comes from everywhere, the search ends after a few parts.
    """
    shares, floor = shares_of_parts(count, error, price, most)
    single = sorted((part for part in shares if len(part) == 1), key=lambda part: (-shares[part], part.start))
    rest = sum(share for part, share in shares.items() if len(part) > 1)
    return [part.start for part in single[: _worth([shares[part] for part in single], floor + rest, price)]]


def shares_of_parts(count: int, error: Error, price: float, most: int) -> tuple[dict[range, float], float]:
    """Return the error shares of parts of ``count`` items, halved as in :func:`largest_shares`, and the rest.

    The rest is the error with all items removed. Items were separated if their part has length 1.
    """
    if not count or most < 1:
        return {}, 1.0
    everything = frozenset(range(count))
    floor = max(error(everything), _LEAST)
    shares = {range(count): max(1 - floor, 0.0)}
    measured = 1
    while measured + 2 <= most:
        ordered = sorted(shares, key=lambda part: (-shares[part], part.start))
        worth = ordered[: _worth([shares[part] for part in ordered], floor, price)]
        wide = next((part for part in worth if len(part) > 1), None)
        if wide is None:
            break
        del shares[wide]
        for half in (wide[: len(wide) // 2], wide[len(wide) // 2 :]):
            shares[half] = max(error(everything.difference(half)) - floor, 0.0)
        measured += 2
    return shares, floor


def _worth(shares: Sequence[float], floor: float, price: float) -> int:
    """Return how many of the sorted shares to remove for the largest gain, at a price in dB for each."""
    left = [floor + sum(shares[count:]) for count in range(len(shares) + 1)]
    values = [decibels(rest) - price * count for count, rest in enumerate(left)]
    values[0] = 0.0
    return max(range(len(values)), key=values.__getitem__)
