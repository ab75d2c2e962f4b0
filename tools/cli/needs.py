"""Needs of options, declared beside them: an option without effect is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Need:
    """A requirement of an option, in words, and its check on the options or the scheme."""

    words: str
    is_met: Callable[[Any], bool]


DATA = Need("--data", lambda job: job.data is not None)
