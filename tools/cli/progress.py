"""What a run does and how far it is: a bar on a terminal, a line for each phase in the log (--verbose)."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Show = Callable[..., None]
"""Called with how many pieces of how many (None: not known) are done, and a note."""

_TICK = 0.5  # seconds after which the time on the bar goes on by itself


class Progress:
    """A bar on stderr for a phase of a run: its number among all, pieces done, time gone and left, a note.

    It is gone when the phase ends, and begins anew when the work starts over. Shows nothing if stderr is not
    a terminal.
    """

    def __init__(self, what: str, unit: str = "", phases: Sequence[str] = ()) -> None:
        """Name the phase, its pieces if it has any, and all phases of the run."""
        self._phases = phases
        self._bar: Any = None
        self._done, self._start, self._ended = 0, 0.0, threading.Event()
        self._what, self._unit = what, unit

    def __enter__(self) -> Progress:
        """Show the phase."""
        self._begin()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._end(is_done=kind is None)

    def show(self, done: int, total: int | None, note: str = "") -> None:
        """Say how many pieces of how many (None: not known) are done."""
        self._done = done
        if not sys.stderr.isatty():
            return
        if self._bar is None or done < self._bar.n:
            self._open()
        self._bar.total = total
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def each(self, items: Iterable[T], total: int) -> Iterator[T]:
        """Yield the items, each of which is a piece of the phase, done when the next is asked for."""
        for done, item in enumerate(items):
            self.show(done, total)
            yield item
        self.show(total, total)

    def switch(self, what: str, unit: str = "") -> None:
        """End the phase and begin another, unless it is the current one."""
        if what != self._what:
            self._end(is_done=True)
            self._what, self._unit = what, unit
            self._begin()

    def shows(self, what: str, unit: str, then: str = "") -> Show:
        """Return what shows another phase, to which it switches; after its last piece, ``then`` begins."""

        def _show(done: int, total: int | None, note: str = "") -> None:
            self.switch(what, unit)
            self.show(done, total, note)
            if then and done == total:
                self.switch(then)

        return _show

    def _begin(self) -> None:
        self._done, self._start, self._ended = 0, time.perf_counter(), threading.Event()
        if sys.stderr.isatty():
            self._open()
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def _open(self) -> None:
        from tqdm import tqdm

        if self._bar is not None:
            self._bar.close()
        number = f"{self._phases.index(self._what) + 1}/{len(self._phases)} " if self._phases else ""
        form = None if self._unit else "{desc} [{elapsed}]"
        self._bar = tqdm(desc=number + self._what, unit=self._unit, leave=False, bar_format=form)

    def _tick(self) -> None:
        while not self._ended.wait(_TICK):
            self._bar.refresh()

    def _end(self, *, is_done: bool) -> None:
        self._ended.set()
        if self._bar is not None:
            self._ticker.join()  # it would draw a bar that is closed
            self._bar.close()
            self._bar = None
        if is_done:
            pieces = f"{self._done} {self._unit}{'' if self._done == 1 else 's'}, " if self._unit else ""
            seconds = time.perf_counter() - self._start
            logging.getLogger("tools").info("%s: %s%.1f s", self._what, pieces, seconds)


class Phases:
    """The phases of a run in order, some of which may be left out."""

    def __init__(self, *names: str) -> None:
        """Name them; empty names are none."""
        self._names = [name for name in names if name]

    def __call__(self, what: str, unit: str = "") -> Progress:
        """Return the progress of one of them."""
        return Progress(what, unit, self._names)
