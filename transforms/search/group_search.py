"""Searches in groups: which of many changes can be made together, and which of many things hold an error.

As in adaptive group testing (R. Dorfman, The Detection of Defective Members of Large Populations, 1943), a
group that fails is halved, so that a few changes that fail among many cost few evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TypeVar

from ops.metrics import decibels

T = TypeVar("T")

Removed = Set[int]
Error = Callable[[Removed], float]
"""Returns the error that is left with these things removed, as a share of that with none removed."""

MOST_PARTS = 200
"""Layers that are told apart: of more, what follows a dot product is part of it."""

_LEAST = 1e-12


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


def joined(items: Sequence[T], begins: Callable[[T], bool], most: int = MOST_PARTS) -> list[list[T]]:
    """Return items one by one, or if they are many, each with those that follow up to one that begins a part.

    Parts that are still too many are joined evenly.
    """
    if len(items) <= most:
        return [[item] for item in items]
    parts: list[list[T]] = []
    for item in items:
        if begins(item) or not parts:
            parts.append([])
        parts[-1].append(item)
    size = -(-len(parts) // most)
    return [[item for part in parts[i : i + size] for item in part] for i in range(0, len(parts), size)]


def fewest(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return few items for which ``holds`` is true, of the first of them; all if it is true of nothing less.

    One at least. As many as are enough are found by doubling and halving their number; then those are given
    up, the last first, that the others do without.
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
    """Return items without those that ``holds`` does not need, the last of which are given up first."""
    places = range(len(items))

    def _holds_without(given_up: Sequence[int]) -> bool:
        return holds([items[place] for place in places if place not in given_up])

    needless = set(add_in_groups(places[::-1], _holds_without))
    return [items[place] for place in places if place not in needless]


def largest_shares(count: int, error: Error, price: float, most: int) -> list[int]:
    """Return which of ``count`` things to remove, those of the largest share first; maybe none.

    Each has to lower the error by ``price`` dB, on an average over those that are removed. ``most``: how many
    errors may be measured; with too few, things that were not told apart are not returned.

    Shares of an error add up as long as they are small beside the signal, so they are measured beside a model
    that has nothing else. A part of them is halved only as long as it could be worth its price if one thing
    in it held all of its share: where an error comes from everywhere, that ends after a few parts.
    """
    found, floor = shares_of_parts(count, error, price, most)
    single = sorted((part for part in found if len(part) == 1), key=lambda part: (-found[part], part.start))
    rest = sum(share for part, share in found.items() if len(part) > 1)
    return [part.start for part in single[: _worth([found[part] for part in single], floor + rest, price)]]


def shares_of_parts(count: int, error: Error, price: float, most: int) -> tuple[dict[range, float], float]:
    """Return the shares of parts of ``count`` things, halved as :func:`largest_shares` does, and the rest.

    Parts of one thing are those that were told apart.
    """
    if not count or most < 1:
        return {}, 1.0
    everything = frozenset(range(count))
    floor = max(error(everything), _LEAST)
    shares = {range(count): max(1 - floor, 0.0)}
    measured = 1
    while measured + 2 <= most:
        parts = sorted(shares, key=lambda part: (-shares[part], part.start))
        worth = parts[: _worth([shares[part] for part in parts], floor, price)]
        wide = next((part for part in worth if len(part) > 1), None)
        if wide is None:
            break
        del shares[wide]
        for half in (wide[: len(wide) // 2], wide[len(wide) // 2 :]):
            shares[half] = max(error(everything.difference(half)) - floor, 0.0)
        measured += 2
    return shares, floor


def _worth(shares: Sequence[float], floor: float, price: float) -> int:
    """Return how many of the shares, largest first, are best removed at a price in dB for each."""
    left = [floor + sum(shares[count:]) for count in range(len(shares) + 1)]
    values = [decibels(rest) - price * count for count, rest in enumerate(left)]
    values[0] = 0.0
    return max(range(len(values)), key=values.__getitem__)
