"""Other sizes for the dimensions that a model leaves free, and feeds of these sizes.

A size may hang on others, as that of a mask on a cache and what is new, and nothing in a model says so. Sizes
are therefore proposed, alone, in groups and in sums, and a run of the float model tells which it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Feed

_FEW = 3
"""The first size for a dimension that was empty, and the largest that grows by one: it is not halved to 1,
which may stand for any other size."""

_TILE = 32
"""What sizes of images are multiples of, as networks that halve them five times want."""

Sizes = Mapping["FreeSize", int]


@dataclass(frozen=True)
class FreeSize:
    """Dimensions of inputs that have one size in a feed: those of a symbol, or one that has no name.

    ``places``: inputs, the rank of each, and axes.
    """

    name: str
    size: int
    places: tuple[tuple[str, int, int], ...]


def free_sizes_in(inputs: Iterable[gs.Tensor], feed: Feed) -> list[FreeSize]:
    """Return the sizes that inputs leave free, as they are in a feed."""
    places: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    for tensor in inputs:
        name = str(tensor.name)
        shape, sizes = tensor.shape or (), feed[name].shape
        for axis, (declared, size) in enumerate(zip(shape, sizes, strict=False)):
            if not isinstance(declared, int) or declared < 0:
                symbol = declared if isinstance(declared, str) and declared else f"{name}[{axis}]"
                places.setdefault((symbol, size), []).append((name, len(sizes), axis))
    return [FreeSize(*key, tuple(found)) for key, found in places.items()]


def proposals(free: Sequence[FreeSize], *, may_shrink: bool = True) -> Iterator[Sizes]:
    """Yield other sizes, the likely ones first: all anew, each alone, those of one size, and sums.

    ``may_shrink``: a size may become less. Of sums all parts grow or shrink by the same. The last are those
    that take the least.
    """
    yield _anew(free, may_shrink)
    groups = list(_groups(free))
    for group in groups:
        if len(group) < len(free):
            yield _anew(group, may_shrink)
    for count in (2, 3):
        for chosen in combinations(groups, count):
            members = dict.fromkeys(one for group in chosen for one in group)
            if len(members) == sum(map(len, chosen)):
                least = min(one.size for one in members)
                step = _other(least, may_shrink) - least
                yield {one: one.size + step for one in members}
    yield {one: 2 * one.size for one in free if one.size}
    if may_shrink:
        yield from ({one: 1 for one in group if one.size > 1} for group in groups)


def _anew(group: Iterable[FreeSize], may_shrink: bool) -> Sizes:
    return {one: _other(one.size, may_shrink) for one in group}


def _groups(free: Sequence[FreeSize]) -> Iterator[tuple[FreeSize, ...]]:
    """Yield each size alone, and those together that look alike: of equal size, or at the same axis, too.

    Groups of many come first.
    """
    alike: dict[object, list[FreeSize]] = {}
    for one in free:
        _, rank, axis = one.places[0]
        for key in (one, one.size, (one.size, rank, axis)):
            alike.setdefault(key, []).append(one)
    yield from sorted(dict.fromkeys(map(tuple, alike.values())), key=len, reverse=True)


def _other(size: int, may_shrink: bool) -> int:
    """Return another size: the half where that is not a special size, in whole tiles if it has them."""
    if size <= _FEW:
        return size + 1 if size else _FEW
    unit = _TILE if size % _TILE == 0 and size > _TILE else 1
    half = size // 2 // unit * unit
    return half if may_shrink else size + half


def resized(feed: Feed, sizes: Sizes) -> dict[str, AnyArray]:
    """Return a feed with other sizes: arrays end earlier, or begin anew; what was empty is zero."""
    made = dict(feed)
    for one, size in sizes.items():
        for name, _, axis in one.places:
            array = made[name]
            if array.shape[axis]:
                made[name] = np.take(array, np.arange(size) % array.shape[axis], axis)
            else:
                made[name] = np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)
    return made
