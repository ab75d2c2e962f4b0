"""Propose other sizes for the free dimensions of a model, and resize feeds.

Sizes may depend on each other, as that of a mask on cache and new tokens, and models do not say how. So
sizes are proposed alone, in groups and in sums, and runs of the float model tell which ones it accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed

_FEW = 3
"""The first size of a dimension that was empty, and the largest that grows by one instead of being halved:
1 may stand for any other size."""

_TILE = 32
"""Divisor of usual image sizes, for networks that halve them five times."""

Sizes = Mapping["FreeSize", int]


@dataclass(frozen=True)
class FreeSize:
    """Dimensions of inputs with one size in a feed: those with one symbol, or a single unnamed one.

    ``places``: input name, rank, and axis of each.
    """

    name: str
    size: int
    places: tuple[tuple[str, int, int], ...]


def free_sizes_in(inputs: Iterable[gs.Tensor], feed: Feed) -> list[FreeSize]:
    """Return the sizes of free dimensions in a feed."""
    places: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    for tensor in inputs:
        name = str(tensor.name)
        shape, sizes = tensor.shape or (), feed[name].shape
        for axis, (declared, size) in enumerate(zip(shape, sizes, strict=False)):
            if not isinstance(declared, int) or declared < 0:
                symbol = declared if isinstance(declared, str) and declared else f"{name}[{axis}]"
                places.setdefault((symbol, size), []).append((name, len(sizes), axis))
    return [FreeSize(*key, tuple(axes)) for key, axes in places.items()]


def proposals(free: Sequence[FreeSize], *, may_shrink: bool = True) -> Iterator[Sizes]:
    """Yield other sizes, likely ones first: all at once, each alone, those of equal size, and sums.

    ``may_shrink``: sizes may decrease. In a sum all terms grow or shrink by the same amount. The last
    proposals are those that cost least.
    """
    yield _anew(free, may_shrink)
    groups = list(_groups(free))
    for group in groups:
        if len(group) < len(free):
            yield _anew(group, may_shrink)
    for count in (2, 3):
        for chosen in combinations(groups, count):
            members = dict.fromkeys(member for group in chosen for member in group)
            if len(members) == sum(map(len, chosen)):
                least = min(member.size for member in members)
                step = _other(least, may_shrink) - least
                yield {member: member.size + step for member in members}
    yield {member: 2 * member.size for member in free if member.size}
    if may_shrink:
        yield from ({member: 1 for member in group if member.size > 1} for group in groups)


def _anew(group: Iterable[FreeSize], may_shrink: bool) -> Sizes:
    return {one: _other(one.size, may_shrink) for one in group}


def _groups(free: Sequence[FreeSize]) -> Iterator[tuple[FreeSize, ...]]:
    """Yield each size alone, and groups of those that are equal, or equal at the same axis.

    Large groups come first.
    """
    alike: dict[object, list[FreeSize]] = {}
    for one in free:
        _, rank, axis = one.places[0]
        for key in (one, one.size, (one.size, rank, axis)):
            alike.setdefault(key, []).append(one)
    yield from sorted(dict.fromkeys(map(tuple, alike.values())), key=len, reverse=True)


def _other(size: int, may_shrink: bool) -> int:
    """Return another size: half of it unless that is special, in whole tiles if it consists of tiles."""
    if size <= _FEW:
        return size + 1 if size else _FEW
    unit = _TILE if size % _TILE == 0 and size > _TILE else 1
    half = size // 2 // unit * unit
    return half if may_shrink else size + half


def resized(feed: Feed, sizes: Sizes) -> dict[str, AnyArray]:
    """Return a feed with other sizes: arrays are cut or repeated; empty ones are filled with zeros."""
    arrays = dict(feed)
    for free, size in sizes.items():
        for name, _, axis in free.places:
            array = arrays[name]
            if array.shape[axis]:
                arrays[name] = np.take(array, np.arange(size) % array.shape[axis], axis)
            else:
                arrays[name] = np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)
    return arrays
