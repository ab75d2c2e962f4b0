"""Processes that work for this one: they leave interrupts to it, and end with it, whatever ends it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from transforms.runtime.product_threads import start_products_on_one_thread

_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
_NO_WARNING = "ignore:resource_tracker"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@contextmanager
def open_processes(jobs: int) -> Iterator[Executor]:
    """Yield an executor with as many processes, started anew: threads of a runtime do not survive a fork.

    They are idle at the end of the block, or killed: what they were doing when an exception or an interrupt
    left it is wanted by nobody.
    """
    check_current_folder()
    _start_resource_tracker()
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    end, alive = spawn.Pipe(duplex=False)
    with end, alive:
        about = (end, os.getpid(), threading.current_thread() is threading.main_thread())
        executor = ProcessPoolExecutor(jobs, spawn, _begin, about)
        try:
            with interrupts_for_this_process_alone(), _signals_deferred():
                for _ in range(jobs):  # one process is started for each task that finds none idle
                    executor.submit(int)
            yield executor
        except BaseException:
            with _quiet_threads():
                for process in set(multiprocessing.active_children()) - others:
                    process.kill()
                executor.shutdown(cancel_futures=True)
            raise
        executor.shutdown()


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Let the executor's thread fail at tasks that were called off when it finds its processes killed."""
    before, threading.excepthook = threading.excepthook, lambda failed: None
    try:
        yield
    finally:
        threading.excepthook = before


def check_current_folder() -> None:
    """Raise OSError of one line where processes cannot be started, as the current folder is there no more."""
    try:
        Path.cwd()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the current folder, in which processes start") from error


@contextmanager
def interrupts_for_this_process_alone() -> Iterator[None]:
    """Let processes that are started meanwhile not see interrupts: a terminal sends them to all of them.

    They inherit from this thread, and from threads that it starts, which signals are held back.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    _start_resource_tracker()  # it would let interrupts through again, were it started meanwhile
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Take signals that end this process at the end of the block: one half started would say much of that."""
    came: list[int] = []
    previous: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                previous[number] = signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def _start_resource_tracker() -> None:
    """Start the process that takes away semaphores after this one, which is not to call that a leak."""
    sys.warnoptions.append(_NO_WARNING)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(_NO_WARNING)


def _begin(end: Connection, parent: int, is_main: bool) -> None:
    """Ignore interrupts, make products on one thread, and end with the parent.

    Its end of the pipe closes with it, also before this process looks. On Linux the system kills this
    process, too, if the parent started it in its main thread: code that is not Python's can keep a thread
    from looking.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()
    if is_main and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    start_products_on_one_thread()


def _end_with(end: Connection) -> None:
    try:
        end.recv()
    finally:
        os._exit(1)
