"""Few samples choose between candidates in turn: each part of them by what is fitted to the others.

One held-out sample of eight that chooses damping, grid and rounding of every layer suits itself, and cannot
tell then whether the whole is better: accepted models gained 3.6 dB on it and 1.6 on others, of 31 random
networks in four formats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from transforms.finetune.gram import SharedGramStats
from transforms.finetune.options import FEW, LayerwiseOptions
from transforms.layers.matched_layer import MatchedLayer

_MOST = 8
"""Parts: each fit is to seven eighths of the samples then, close to the one that all of them get."""

_MOST_PRODUCTS = 20_000_000_000
"""Multiplications that all parts may take in a layer: a second or less, as those of learned roundings."""

_CUBES, _SQUARES = 2, 20
"""Multiplications of a part for K inputs and N outputs, in K^3 and N K^2: five solves of a third of K^3 for
dampings, two factorizations of a sixth; about twenty products of a weight with K^2 numbers in solves, in
roundings of up to six candidates, their sweeps, and their errors."""


def part_count(layer: MatchedLayer, held_out: Sequence[bool], options: LayerwiseOptions) -> int:
    """Return the number of parts of the fitting samples that judge a layer in turn.

    One, so that the held-out samples do, if those are six or more, if an algorithm is given, which may take
    long, if several layers share the weight, whose inputs depend on it, and in large layers.
    """
    if sum(held_out) >= FEW or options.algorithm != "auto" or layer.sharing_layers:
        return 1
    groups, outputs, *inputs = layer.layer.size
    size = math.prod(inputs)
    products = groups * size**2 * (_CUBES * size + _SQUARES * outputs)
    return max(1, min(_MOST, held_out.count(False), _MOST_PRODUCTS // products))


def places_of(held_out: Sequence[bool], parts: int, *, in_blocks: bool) -> list[int]:
    """Return the part of each fitting sample, in turn or in blocks of neighbours; the last are held out."""
    count, found = held_out.count(False), list[int]()
    seen = 0
    for is_held in held_out:
        found.append(parts if is_held else seen * parts // count if in_blocks else seen % parts)
        seen += not is_held
    return found


def joined(parts: Sequence[SharedGramStats]) -> SharedGramStats:
    """Return the sums over the rows of all parts, of which there is one at least."""
    return reduce(add, parts)


def crossed(parts: Sequence[SharedGramStats]) -> list[tuple[SharedGramStats, SharedGramStats]]:
    """Return each part with the sums over the others before it; none of a single part."""
    if len(parts) < 2:
        return []
    return [(joined([*parts[:i], *parts[i + 1 :]]), part) for i, part in enumerate(parts)]
