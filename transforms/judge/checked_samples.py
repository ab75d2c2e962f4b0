"""Samples that no choice is made by, so that what a summary says of the outputs is not what was chosen.

Ranges are of all samples, these included.
"""

from __future__ import annotations

from transforms.judge.judge import MOST_SAMPLES

FEWEST_TO_SPARE = 10
"""Samples below which all of them decide: choices by fewer would be worse than no figure is."""

MOST_CHECKED = 4
"""Samples that show how good the outputs are: as many as were always compared at the end."""

_SHARE = 5
"""One of so many samples is spared."""


def checked(count: int) -> range:
    """Return the places of the samples that decide nothing, of ``count``; none of few.

    They are the last of the first samples: those before them judge candidates.
    """
    taken = min(count, MOST_SAMPLES + MOST_CHECKED)
    spared = min(MOST_CHECKED, taken // _SHARE) if taken >= FEWEST_TO_SPARE else 0
    return range(taken - spared, taken)
