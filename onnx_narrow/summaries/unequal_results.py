"""Lines on outputs of two models that have no element for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transforms.compare.compare_results import Comparison


def unequal_lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line for each output with results that are not comparable: how many they are, and the first."""
    every = Counter(one.output for one in comparisons)
    unequal = [one for one in comparisons if one.mismatch]
    for output, count in Counter(one.output for one in unequal).items():
        first = next(one.mismatch for one in unequal if one.output == output)
        yield f"Not comparable: {count} of {every[output]} results of output '{output}': {first}"
