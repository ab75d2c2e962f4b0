"""What a target says of a figure."""

from __future__ import annotations

_LOOK = 3.0  # dB below the target that ask for a look: twice its error


def verdict(value: float | None, target: float | None) -> str:
    """Return the class of a tile: good from the target on, bad where more than twice the error is left."""
    if target is None or value is None:
        return ""
    kind = "good" if value >= target else "look" if value >= target - _LOOK else "bad"
    return f' class="{kind}"'
