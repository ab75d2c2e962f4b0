"""Progress of a run: a bar on a terminal or in a notebook, an occasional line elsewhere."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any

from transforms.run.events import Events, Progress

_TICK = 0.5  # seconds between updates of the time on the bar
_LINE = 30.0  # seconds between lines on progress, without a terminal
_LONG = 30.0  # seconds after which a run is long: each finished phase has a line, without a terminal

log = logging.getLogger("onnx_narrow")


class _Clock:
    """When a run began, and when it last wrote a line where stderr is not a terminal."""

    def __init__(self) -> None:
        self.start = self.said = time.perf_counter()

    def left(self) -> float:
        """Return the seconds after which the next line is due."""
        return max(0.0, self.said + _LINE - time.perf_counter())

    def say(self, line: str) -> None:
        """Write a line."""
        self.said = time.perf_counter()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class PhaseBar:
    """A bar on stderr for a phase of a run: its number, pieces done, elapsed and remaining time, a note.

    It disappears when the phase ends, and restarts when the work does. Where stderr is not a terminal, a long
    run writes a line for each finished phase, and an occasional one during a long phase.
    """

    def __init__(
        self, name: str, unit: str = "", phases: Sequence[str] = (), clock: _Clock | None = None
    ) -> None:
        """Name the phase, its pieces if it has any, and all phases of the run, with its clock."""
        self._phases, self._clock = phases, clock or _Clock()
        self._bar: Any = None
        self._done, self._start, self._ended = 0, time.perf_counter(), threading.Event()
        self._total: int | None = None
        self._note = ""
        self.name, self._unit = name, unit
        self._is_notebook = "ipykernel" in sys.modules
        self._is_shown = self._is_notebook or sys.stderr.isatty()
        if self._is_shown:
            self._open()
        tick = self._tick if self._is_shown else self._log
        self._ticker = threading.Thread(target=tick, args=(self._ended,), daemon=True)
        self._ticker.start()

    def show(self, done: int, total: int | None, note: str = "") -> None:
        """Show how many pieces of the total (None: unknown) are done."""
        self._done, self._total, self._note = done, total, note
        if not self._is_shown:
            return
        if self._bar is None or done < self._bar.n:
            self._open()
        self._bar.total = total
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def end(self, *, is_done: bool) -> None:
        """Remove the bar; a finished phase is logged in one line."""
        self._ended.set()
        if self._bar is not None:
            self._ticker.join()  # it would draw a bar that is closed
            self._bar.close()
            self._bar = None
        if not is_done:
            return
        pieces = f"{self._done} {self._unit}{'' if self._done == 1 else 's'}, " if self._unit else ""
        line = f"{self.name}: {pieces}{time.perf_counter() - self._start:.1f} s"
        if log.isEnabledFor(logging.INFO):
            log.info(line)
        elif not self._is_shown and time.perf_counter() - self._clock.start >= _LONG:
            self._clock.say(line)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar off the terminal while something else is written there."""
        if self._bar is None:
            yield
            return
        with type(self._bar).external_write_mode(sys.stderr):
            yield

    def _open(self) -> None:
        tqdm = importlib.import_module("tqdm.auto" if self._is_notebook else "tqdm").tqdm
        if self._bar is not None:
            self._bar.close()
        is_known = self.name in self._phases
        number = f"{self._phases.index(self.name) + 1}/{len(self._phases)} " if is_known else ""
        form = None if self._unit else "{desc} [{elapsed}{postfix}]"
        self._bar = tqdm(desc=number + self.name, unit=self._unit, leave=False, bar_format=form)

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(_TICK):
            self._bar.refresh()

    def _log(self, ended: threading.Event) -> None:
        """Write an occasional line on the progress of a long phase."""
        while not ended.wait(self._clock.left()):
            if self._clock.left() > 0:  # another phase of the run has said something
                continue
            gone = time.perf_counter() - self._start
            total = "" if self._total is None else f" of {self._total}"
            pieces = f"{self._done}{total} {self._unit}s, " if self._unit else ""
            note = f", {self._note}" if self._note and not self._unit else ""
            self._clock.say(f"{self.name}: {pieces}{gone:.0f} s{note}")


class Bars(Events):
    """Shows the phases of a job, one bar after another; lines and warnings are dropped."""

    def __init__(self) -> None:
        """Start the clock."""
        self._names: Sequence[str] = ()
        self._clock = _Clock()
        self._bar: PhaseBar | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the last phase."""
        self._end(is_done=kind is None)

    def expect(self, *phases: str) -> None:
        """Number phases in this order."""
        self._names = phases

    def phase(self, name: str, unit: str = "") -> Progress:
        """End the previous phase, unless it continues, and return the progress callback of this one."""
        if self._bar is None or self._bar.name != name:
            self._end(is_done=True)
            self._bar = PhaseBar(name, unit, self._names, self._clock)
        return self._bar.show

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar off the terminal while something else is written there."""
        with nullcontext() if self._bar is None else self._bar.aside():
            yield

    def _end(self, *, is_done: bool) -> None:
        if self._bar is not None:
            self._bar.end(is_done=is_done)
            self._bar = None
