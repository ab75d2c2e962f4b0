"""What an option goes with, declared beside it: an option that would do nothing is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Need:
    """What has to be there, in words, and whether it is, by the options or the scheme."""

    words: str
    is_met: Callable[[Any], bool]


DATA = Need("--data", lambda job: job.data is not None)
