"""Cache of results computed from large weights, for models that differ in the formats of few layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from transforms.graph.lazy_values import LARGE, Weight

_T = TypeVar("_T")


class WeightMemory:
    """Results by the array from which they were computed, which must not change, and by what was computed.

    Copies of a graph share its arrays. By default, results for large arrays are cached.
    """

    def __init__(self, of: Iterable[Weight] | None = None) -> None:
        """Start empty; ``of``: the only arrays, of any size, for which results are cached."""
        self._of = None if of is None else {id(values): values for values in of}
        self._known: dict[tuple[int, Hashable], tuple[Weight, Any]] = {}

    def recall(self, values: Weight, what: Hashable, compute: Callable[[], _T]) -> _T:
        """Return the result of ``compute``, cached for the same array and ``what``."""
        if values.nbytes < LARGE if self._of is None else id(values) not in self._of:
            return compute()
        key = id(values), what
        if key not in self._known:
            self._known[key] = values, compute()  # the array stays alive, so its id stays unique
        result: _T = self._known[key][1]
        return result
