"""A function of many small things in the threads of a pool, several at a time: handing over takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from itertools import chain
from typing import TypeVar

_Key = TypeVar("_Key")
_First = TypeVar("_First")
_Second = TypeVar("_Second")
_Result = TypeVar("_Result")

_AT_ONCE = 4  # to hand one over takes as long as to choose the scale of a small weight
_PARTS = 256  # of them all: enough for any number of threads


def each_in(
    pool: Executor,
    function: Callable[[_First, _Second], _Result],
    wanted: Mapping[_Key, tuple[_First, _Second]],
) -> dict[_Key, _Result]:
    """Return by key what the function returns for the pair of that key; raise what it raises first."""
    every = list(wanted.values())
    size = max(_AT_ONCE, len(every) // _PARTS)
    parts = [every[i : i + size] for i in range(0, len(every), size)]
    found = pool.map(lambda part: [function(*pair) for pair in part], parts)
    return dict(zip(wanted, chain.from_iterable(found), strict=True))
