"""What a function of the API reports to its caller: progress, and lines and warnings with the result."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self

from transforms.run.events import Events, Progress


class Watcher(Protocol):
    """Called with a phase, how many pieces of it are done, and of how many (None: not known)."""

    def __call__(self, phase: str, done: int, total: int | None, /) -> None:
        """Take the figures."""


class Told(Events):
    """Collects the lines and warnings of a job, and passes all events on."""

    def __init__(self, progress: Watcher | Events | None) -> None:
        """Pass it on to a watcher or to other events; without any, bars show the phases.

        Raises TypeError for anything else.
        """
        if not (progress is None or callable(progress) or isinstance(progress, Events)):
            raise TypeError(f"progress is a {type(progress).__name__}, not a callable")
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self._events = progress if isinstance(progress, Events) else _shown(progress)

    def __enter__(self) -> Self:
        self._events.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the last phase."""
        self._events.__exit__(kind, error, trace)

    def expect(self, *phases: str) -> None:
        """Take the names of the coming phases, in order; empty names are skipped."""
        self._events.expect(*filter(None, phases))

    def phase(self, name: str, unit: str = "") -> Progress:
        """Begin a phase."""
        return self._events.phase(name, unit)

    def note(self, line: str) -> None:
        """Take a line of the summary."""
        self.lines.append(line)
        self._events.note(line)

    def warn(self, line: str) -> None:
        """Take a warning."""
        self.warnings.append(line)
        self._events.warn(line)

    def tell(self, lines: Iterable[str], warnings: Iterable[str] = ()) -> None:
        """Take lines of the summary, and warnings after them."""
        for line in lines:
            self.note(line)
        for line in warnings:
            self.warn(line)


def _shown(watcher: Watcher | None) -> Events:
    """Return the events that show the phases: progress bars without a watcher."""
    if watcher is not None:
        return _Watched(watcher)
    from onnx_narrow.api.bars import Bars  # imports take time that small jobs notice

    return Bars()


class _Watched(Events):
    def __init__(self, watcher: Watcher) -> None:
        self._watcher, self._now = watcher, ""

    def phase(self, name: str, unit: str = "") -> Progress:
        """Report the start of a phase, unless it continues, and return its progress callback."""
        if name != self._now:
            self._now = name
            self._watcher(name, 0, None)

        def _show(done: int, total: int | None, note: str = "") -> None:
            self._watcher(name, done, total)

        return _show
