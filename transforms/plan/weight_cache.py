"""Remembering what was computed of large weights, for models that differ in the formats of few layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from transforms.graph.lazy_values import LARGE, Weight

_T = TypeVar("_T")


class WeightMemory:
    """Results by the array that they were computed of, which must not change, and what was computed.

    Copies of a graph share its arrays. Without a word on which, results are kept of large ones.
    """

    def __init__(self, of: Iterable[Weight] | None = None) -> None:
        """Start without results; ``of``: arrays, of any size, of which alone they are kept."""
        self._of = None if of is None else {id(values): values for values in of}
        self._known: dict[tuple[int, Hashable], tuple[Weight, Any]] = {}

    def recall(self, values: Weight, what: Hashable, compute: Callable[[], _T]) -> _T:
        """Return what ``compute`` returns, or returned earlier for the same array and ``what``."""
        if values.nbytes < LARGE if self._of is None else id(values) not in self._of:
            return compute()
        key = id(values), what
        if key not in self._known:
            self._known[key] = values, compute()  # the array stays alive, and so its id stays its own
        result: _T = self._known[key][1]
        return result
