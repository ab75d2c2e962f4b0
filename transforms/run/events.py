"""What a job tells while it runs: phases with their progress, lines and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Called with how many pieces of a phase are done, of how many (None: not known), and a note."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Take the figures."""


class Events:
    """Receives what a job tells; this one keeps nothing of it. Others show, print or collect it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the last phase."""

    def expect(self, *phases: str) -> None:
        """Take the names of the phases to come, in order."""

    def phase(self, name: str, unit: str = "") -> Progress:
        """Begin a phase, whose pieces are of a ``unit`` if it has any; return what is told of them."""
        return _ignored

    def note(self, line: str) -> None:
        """Take a line of the summary."""

    def warn(self, line: str) -> None:
        """Take a line on something that may surprise."""


def _ignored(done: int, total: int | None, note: str = "") -> None:
    """Take figures that nobody looks at."""


SILENT = Events()


def each_told(items: Iterable[T], progress: Progress, total: int) -> Iterator[T]:
    """Yield the items, each of which is a piece of a phase, done when the next is asked for."""
    for done, item in enumerate(items):
        progress(done, total)
        yield item
    progress(total, total)
