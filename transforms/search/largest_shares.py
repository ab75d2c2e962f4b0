"""The few things that hold most of an error, found among many with few measurements.

Shares of an error add up as long as they are small beside the signal, so they are measured beside a model
that has nothing else: many things together first. A part of them is halved only as long as it could be worth
its price if one thing in it held all of its share, as in adaptive group testing. Where an error comes from
everywhere, that ends after a few parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set

Removed = Set[int]
Error = Callable[[Removed], float]
"""Returns the error that is left with these things removed, as a share of that with none removed."""

_LEAST = 1e-12


def largest_shares(count: int, error: Error, price: float, most: int) -> list[int]:
    """Return which of ``count`` things to remove, those of the largest share first; maybe none.

    Each has to lower the error by ``price`` dB, on an average over those that are removed. ``most``: how many
    errors may be measured; with too few, things that were not told apart are not returned.
    """
    if not count or most < 1:
        return []
    everything = frozenset(range(count))
    floor = max(error(everything), _LEAST)
    shares = {range(count): max(1 - floor, 0.0)}
    measured = 1
    while True:
        parts = sorted(shares, key=lambda part: (-shares[part], part.start))
        worth = parts[: _worth([shares[part] for part in parts], floor, price)]
        wide = next((part for part in worth if len(part) > 1), None)
        if wide is None:
            return [part.start for part in worth]
        if measured + 2 > most:
            single = [part for part in parts if len(part) == 1]
            rest = sum(share for part, share in shares.items() if len(part) > 1)
            return [p.start for p in single[: _worth([shares[p] for p in single], floor + rest, price)]]
        del shares[wide]
        for half in (wide[: len(wide) // 2], wide[len(wide) // 2 :]):
            shares[half] = max(error(everything.difference(half)) - floor, 0.0)
        measured += 2


def _worth(shares: Sequence[float], floor: float, price: float) -> int:
    """Return how many of the shares, largest first, are best removed at a price in dB for each."""
    left = [floor + sum(shares[count:]) for count in range(len(shares) + 1)]
    values = [-10 * math.log10(rest) - price * count for count, rest in enumerate(left)]
    values[0] = 0.0
    return max(range(len(values)), key=values.__getitem__)
