"""What a ratio of times says: faster, slower, the same, or nothing."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transforms.run.turns import Timing

SLOWER = 1.03
"""Times as long from which on a model is called slower: less is within the noise of a short measurement."""

_SCATTERED = 1.5
"""Times the lower quartile from which on the upper one leaves nothing to say."""

_SPREAD = 1.1
"""Times as long up to which quartiles around 1 mean the same speed, and beyond which they mean nothing."""


class Speed(Enum):
    """How fast a model is beside another."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "as fast"
    UNKNOWN = "unknown"


def speed(ratio: Timing) -> Speed:
    """Return what the ratio of a model's times to another's says.

    Nothing is known where quartiles are far apart, or around 1 and not close to it: the machine is too busy.
    """
    low, high = ratio.low, ratio.high
    is_open = low <= 1 <= high
    if high > _SCATTERED * low or (is_open and (high > _SPREAD or low * _SPREAD < 1)):
        return Speed.UNKNOWN
    if is_open or 1 / SLOWER <= ratio.median <= SLOWER:
        return Speed.SAME
    return Speed.SLOWER if ratio.median > 1 else Speed.FASTER
