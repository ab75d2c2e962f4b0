"""What was tried, for the summary."""

from __future__ import annotations

from dataclasses import dataclass, field

from transforms.judge.errors import Gain


@dataclass(frozen=True)
class Tried:
    """A candidate that was measured: what it changes, its gain over the best so far, and if it was kept.

    ``samples``: how many showed the gain.
    """

    move: str
    change: str
    gain: Gain
    kept: bool
    samples: int

    def __str__(self) -> str:
        return f"{self.move}: {self.change}: {self.gain}{', kept' if self.kept else ''}"


@dataclass
class Record:
    """Everything that was tried, in order, and notes on what was not; ``samples``: how many decided."""

    tried: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: int = 0

    @property
    def kept(self) -> list[Tried]:
        """What was kept."""
        return [one for one in self.tried if one.kept]
