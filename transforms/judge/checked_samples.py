"""Samples that no choice is made by, so that what a summary says of the outputs is not what was chosen.

Ranges are of all samples, these included.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ops.array_types import Feed
from transforms.judge.constants import FEW_SAMPLES, FEWEST, MOST_SAMPLES, SPARED


def checked(count: int) -> range:
    """Return the places of the samples that decide nothing, of ``count``; none of few.

    They are the last of the first samples: those before them judge candidates.
    """
    taken = min(count, MOST_SAMPLES + FEW_SAMPLES)
    spared = min(FEW_SAMPLES, taken // SPARED) if taken >= SPARED * FEWEST else 0
    return range(taken - spared, taken)


def judging(feeds: Iterable[tuple[str, Feed]]) -> list[Feed]:
    """Return the samples that judge candidates: the first, without those that decide nothing."""
    first = [feed for _, feed in islice(feeds, MOST_SAMPLES + FEW_SAMPLES)]
    return first[: checked(len(first)).start]
