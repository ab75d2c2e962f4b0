"""Ctrl-C and other signals that end a tool: one line and an exit code, whenever they come.

An exception is not enough for all of a run: imports of compiled modules swallow it or turn it into another,
which a tool might take for a missing package; compiled code sees it only when it returns; and a second signal
interrupts the cleanup after the first. So a process that is a tool exits at once while it starts or imports,
unwinds while it works, and exits anyway if unwinding takes too long.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

_NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_GRACE = 2.0  # seconds from a signal to the end, for cleaning up in order
_STARTING, _WORKING, _UNWINDING, _LEAVING, _DONE = range(5)


class Interrupted(KeyboardInterrupt):
    """The work ends because of a signal; ``code`` is the exit code of the process."""

    def __init__(self, number: int) -> None:
        """Take the number of the signal."""
        super().__init__(number)
        self.code = 128 + number


class _Tool:
    """The tool that this process runs: its phase, and how it ends."""

    def __init__(self, name: str) -> None:
        self._name, self._phase, self._code, self._once = name, _STARTING, 0, [True]
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup, or in a shell's background
                signal.signal(number, self._take)
        sys.unraisablehook = _say_unless_interrupted

    def work(self) -> None:
        """Let signals raise Interrupted from now on, and watch that the process ends after it."""
        if self._phase == _STARTING:  # later calls in this process use the same watching thread
            self._begin_watch()
        self._phase = _WORKING

    def _begin_watch(self) -> None:
        import threading

        wakened, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(wakened,), daemon=True).start()

    def end(self, code: int) -> None:
        """Let signals end the process with this code from now on: its work is done."""
        self._code, self._phase = code, _DONE

    def leave(self, code: int) -> None:
        """End the process here: remove its temporary files, and print why."""
        self._phase = _LEAVING  # signals have no effect from here on
        try:
            self._once.pop()
        except IndexError:  # the main thread, or the one that watches it, is about to
            while True:
                time.sleep(_GRACE)
        try:
            _quieten_threads()
            for process in _active_children():
                process.kill()
            remove = getattr(
                sys.modules.get("transforms.files.cleanup"), "remove_all", None
            )  # none while imported
            if remove is not None:
                remove()
            os.write(2, f"{self._name}: error: interrupted\n".encode())
        finally:  # whatever else is wrong
            os._exit(code)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._phase == _DONE:
            os._exit(self._code)
        if self._phase == _STARTING or (self._phase == _WORKING and _is_importing(frame)):
            self.leave(128 + number)
        if self._phase == _WORKING:
            self._phase = _UNWINDING
            raise Interrupted(number)

    def _watch(self, wakened: int) -> None:
        """Wait for a signal: this thread sees it even while the main thread runs compiled code."""
        number = 0
        while number not in _NUMBERS:
            number = os.read(wakened, 1)[0]
        time.sleep(_GRACE)
        if self._phase != _DONE:
            self.leave(128 + number)


_tool: _Tool | None = None


def take_signals(command: str = "") -> bool:
    """Let signals end this process with one line if it was started as a tool; return whether it was.

    ``command``: the command that started it, if not ``python -m``.
    """
    global _tool
    words, package = sys.orig_argv, (__package__ or "").rpartition(".")[0]
    module = command or next((after for word, after in pairwise(words) if word == "-m"), "")
    if (command or module.startswith(f"{package}.")) and _tool is None:
        _tool = _Tool(module)
    return _tool is not None


@contextmanager
def raised() -> Iterator[None]:
    """Let signals that end a process raise KeyboardInterrupt inside the block, in the main thread."""
    if _tool is not None:
        _tool.work()
        yield
        return
    previous = {number: signal.getsignal(number) for number in _NUMBERS if number != signal.SIGINT}
    try:
        for number, handler in previous.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _raise)
    except ValueError:  # another thread cannot set signal handlers
        previous = {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def end(code: int) -> None:
    """Record that the work is done, with this exit code: later signals do not change it."""
    if _tool is not None:
        _tool.end(code)


def leave(stopped: KeyboardInterrupt) -> int:
    """End the process if it is a tool; return the exit code elsewhere."""
    code = stopped.code if isinstance(stopped, Interrupted) else 128 + signal.SIGINT
    if _tool is not None:
        _tool.leave(code)
    return code


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _active_children() -> list[Any]:
    """Return the processes that were started to work for this one."""
    active = getattr(sys.modules.get("multiprocessing"), "active_children", list)
    return list(active())


def _quieten_threads() -> None:
    """Let threads that wait for those processes fail silently."""
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading.excepthook = lambda failed: None


def _say_unless_interrupted(unraisable: sys.UnraisableHookArgs) -> None:
    """Hide an interrupt that is raised while an object is deleted: the watching thread ends the process."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
