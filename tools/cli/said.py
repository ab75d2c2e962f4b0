"""What a tool says: lines on stdout, warnings on stderr, or both to a caller in Python who collects them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Said:
    """The lines and the warnings that were collected."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


_collecting: ContextVar[Said | None] = ContextVar("collecting", default=None)


def say(line: str) -> None:
    """Say a line of a summary."""
    said = _collecting.get()
    if said is None:
        print(line)
    else:
        said.lines.append(line)


def warn(line: str) -> None:
    """Say a warning, or what else belongs on stderr."""
    said = _collecting.get()
    if said is None:
        print(line, file=sys.stderr, flush=True)
    else:
        said.warnings.append(line)


@contextmanager
def collected() -> Iterator[Said]:
    """Collect what is said meanwhile, in this thread."""
    said = Said()
    token = _collecting.set(said)
    try:
        yield said
    finally:
        _collecting.reset(token)
