"""Events of a job while it runs: phases with progress, lines and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Called with how many items of a phase are done, their total (None if unknown), and a note."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Receive the figures."""


class Events:
    """Receives the events of a job and ignores them. Subclasses show, print or collect them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the last phase."""

    def expect(self, *phases: str) -> None:
        """Receive the names of the phases to come, in order."""

    def phase(self, name: str, unit: str = "") -> Progress:
        """Begin a phase, with items called ``unit``; return the callback for its progress."""
        return _ignored

    def note(self, line: str) -> None:
        """Receive a line of the summary."""

    def warn(self, line: str) -> None:
        """Receive a warning."""


def _ignored(done: int, total: int | None, note: str = "") -> None:
    """Ignore figures."""


SILENT = Events()


def each_told(items: Iterable[T], progress: Progress, total: int) -> Iterator[T]:
    """Yield items of a phase; each counts as done when the next is requested."""
    for done, item in enumerate(items):
        progress(done, total)
        yield item
    progress(total, total)
