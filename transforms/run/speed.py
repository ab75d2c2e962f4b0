"""The speed that a ratio of times indicates: faster, slower, the same, or unknown."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transforms.run.turns import Timing

SLOWER = 1.03
"""The ratio of times from which a model counts as slower: less is within the noise of a short measurement."""

_SCATTERED = 1.5
"""The ratio of the upper to the lower quartile above which the speed is unknown."""

_SPREAD = 1.1
"""Quartiles around 1 within this ratio mean the same speed; further apart, the speed is unknown."""


class Speed(Enum):
    """The speed of a model compared with another."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "as fast"
    UNKNOWN = "unknown"


def speed(ratio: Timing) -> Speed:
    """Return the speed of a model from the ratio of its times to those of another.

    It is unknown if the quartiles are far apart, or on both sides of 1 and not close to it: the machine is
    too busy.
    """
    low, high = ratio.low, ratio.high
    is_open = low <= 1 <= high
    if high > _SCATTERED * low or (is_open and (high > _SPREAD or low * _SPREAD < 1)):
        return Speed.UNKNOWN
    if is_open or 1 / SLOWER <= ratio.median <= SLOWER:
        return Speed.SAME
    return Speed.SLOWER if ratio.median > 1 else Speed.FASTER
