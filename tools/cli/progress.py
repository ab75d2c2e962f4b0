"""What a run does and how far it is: a bar on a terminal, a line for each phase in the log (--verbose)."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tools.cli.said import say, warn
from transforms.run.events import Events

T = TypeVar("T")

Show = Callable[..., None]
"""Called with how many pieces of how many (None: not known) are done, and a note."""

Watcher = Callable[[str, int, int | None], None]
"""Called with a phase, how many pieces of it are done, and of how many (None: not known)."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Let a caller in Python know of each phase and piece meanwhile, in place of the bar; None: the bar."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


_TICK = 0.5  # seconds after which the time on the bar goes on by itself
_LINE = 30.0  # seconds after which a line says how far it is, without a terminal
_LONG = 30.0  # seconds after which a run is long: each phase that ends has its line, without a terminal


class _Clock:
    """When a run began, and when it last said something where stderr is not a terminal."""

    def __init__(self) -> None:
        self.start = self.said = time.perf_counter()

    def is_long(self) -> bool:
        """Return whether somebody may wonder by now whether the run is alive."""
        return time.perf_counter() - self.start >= _LONG

    def left(self) -> float:
        """Return the seconds after which the next line is due."""
        return max(0.0, self.said + _LINE - time.perf_counter())

    def say(self, line: str) -> None:
        """Say something."""
        self.said = time.perf_counter()
        print(line, file=sys.stderr, flush=True)


def _shows_bars() -> bool:
    """Return whether stderr is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    return "ipykernel" in sys.modules


class Progress:
    """A bar on stderr for a phase of a run: its number among all, pieces done, time gone and left, a note.

    It is gone when the phase ends, and starts again when the work does. Where stderr is not a terminal, a
    run that takes long has a line for each phase that ends, and one now and then during a long phase.
    """

    def __init__(
        self, what: str, unit: str = "", phases: Sequence[str] = (), clock: _Clock | None = None
    ) -> None:
        """Name the phase, its pieces if it has any, and all phases of the run, with its clock."""
        self._phases, self._clock = phases, clock or _Clock()
        self._bar: Any = None
        self._done, self._start, self._ended = 0, 0.0, threading.Event()
        self._total: int | None = None
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
        if watcher := _watcher.get():
            watcher(self._what, done, total)
            return
        self._total = total
        if not _shows_bars():
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
        self._total = None
        if watcher := _watcher.get():
            watcher(self._what, 0, None)
            return
        tick = self._log
        if _shows_bars():
            self._open()
            tick = self._tick
        self._ticker = threading.Thread(target=tick, args=(self._ended,), daemon=True)
        self._ticker.start()

    def _open(self) -> None:
        tqdm = importlib.import_module("tqdm.auto" if _is_notebook() else "tqdm").tqdm
        if self._bar is not None:
            self._bar.close()
        is_known = self._what in self._phases
        number = f"{self._phases.index(self._what) + 1}/{len(self._phases)} " if is_known else ""
        form = None if self._unit else "{desc} [{elapsed}]"
        self._bar = tqdm(desc=number + self._what, unit=self._unit, leave=False, bar_format=form)

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(_TICK):
            self._bar.refresh()

    def _log(self, ended: threading.Event) -> None:
        """Say now and then how far a phase is that takes long."""
        while not ended.wait(self._clock.left()):
            if self._clock.left() > 0:  # another phase of the run has said something
                continue
            gone = time.perf_counter() - self._start
            total = "" if self._total is None else f" of {self._total}"
            pieces = f"{self._done}{total} {self._unit}s, " if self._unit else ""
            self._clock.say(f"{self._what}: {pieces}{gone:.0f} s")

    def _end(self, *, is_done: bool) -> None:
        self._ended.set()
        if self._bar is not None:
            self._ticker.join()  # it would draw a bar that is closed
            self._bar.close()
            self._bar = None
        if is_done:
            pieces = f"{self._done} {self._unit}{'' if self._done == 1 else 's'}, " if self._unit else ""
            seconds = time.perf_counter() - self._start
            line = f"{self._what}: {pieces}{seconds:.1f} s"
            log = logging.getLogger("tools")
            if log.isEnabledFor(logging.INFO):
                log.info(line)
            elif self._clock.is_long() and not (_shows_bars() or _watcher.get()):
                self._clock.say(line)


class Phases:
    """The phases of a run in order, some of which may be left out."""

    def __init__(self, *names: str) -> None:
        """Name them; empty names are none."""
        self._names, self._clock = [name for name in names if name], _Clock()

    def __call__(self, what: str, unit: str = "") -> Progress:
        """Return the progress of one of them."""
        return Progress(what, unit, self._names, self._clock)


class Shown(Events):
    """Shows the phases of a job on the terminal, and says its lines and warnings."""

    def __init__(self, *names: str) -> None:
        """Name the phases in order; empty names are none."""
        self._phases = Phases(*names)
        self._bar: Progress | None = None

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, *error)

    def phase(self, name: str, unit: str = "") -> Show:
        """End the phase before, unless it goes on, and return what shows this one."""
        if self._bar is None:
            self._bar = self._phases(name, unit).__enter__()
        else:
            self._bar.switch(name, unit)
        return self._bar.show

    def note(self, line: str) -> None:
        """Say a line."""
        say(line)

    def warn(self, line: str) -> None:
        """Say a warning."""
        warn(line)
