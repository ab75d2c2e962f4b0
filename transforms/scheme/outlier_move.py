"""How outlying channels of a tensor are moved, so that they do not set the range of all others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_ENTRY = re.compile(r"(\d+):(-?\d+|own)")
_OWN = "own"
_LARGEST = 60  # exponent: far from underflow and overflow


@dataclass(frozen=True)
class OutlierMove:
    """How channels are moved, written as ``"12:1 308:3 856:own"``.

    ``exponents``: by channel, the power of two by which its numbers are divided, 0 for all others. ``own``:
    the channels that get products of their own.
    """

    exponents: Mapping[int, int] = field(default_factory=dict)
    own: tuple[int, ...] = ()

    def of_channels(self, tensor: str, channels: int) -> NDArray[np.int64]:
        """Return the exponents [channels] for a tensor; ValueError for a channel that it does not have."""
        last = max((*self.exponents, *self.own), default=-1)
        if last >= channels:
            raise ValueError(f"channel {last} of '{tensor}' is out of range: it has {channels} channels")
        found = np.zeros(channels, np.int64)
        found[list(self.exponents)] = list(self.exponents.values())
        return found

    def __str__(self) -> str:
        entries: dict[int, object] = {**self.exponents, **dict.fromkeys(self.own, _OWN)}
        return " ".join(f"{channel}:{entries[channel]}" for channel in sorted(entries))


def parse_move(text: str) -> OutlierMove:
    """Parse a move; raise ValueError for any other text, and for a repeated channel."""
    entries = [_ENTRY.fullmatch(part) for part in text.split()]
    pairs = [(int(entry[1]), entry[2]) for entry in entries if entry]
    if not pairs or not all(entries) or len({channel for channel, _ in pairs}) < len(pairs):
        raise ValueError(f"'{text}' is not a list of CHANNEL:EXPONENT and CHANNEL:own, each channel once")
    exponents = {channel: int(action) for channel, action in pairs if action != _OWN}
    largest = max(map(abs, exponents.values()), default=0)
    if largest > _LARGEST:
        raise ValueError(f"exponent {largest} of a channel is above {_LARGEST}")
    return OutlierMove(exponents, tuple(sorted(channel for channel, action in pairs if action == _OWN)))
