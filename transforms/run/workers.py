"""Run pure tasks in this process, in worker processes, or on a cluster.

Results come in the order of the items, so that sums do not depend on the number of workers. Worker processes
leave interrupts to this process and end with it, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from transforms.run.fresh_process import FreshContext
from transforms.run.run_each import start_products_on_one_thread

Item = TypeVar("Item")
Result = TypeVar("Result")

_ATTEMPTS = 3
_ENDING: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
_NO_WARNING = "ignore:resource_tracker"


class Workers:
    """Runs tasks on an executor that is opened at the first task and closed at the end of the block.

    Without ``opens`` tasks run in this process. At most ``ahead`` tasks are submitted before the first
    result is taken: enough to keep all workers busy, few enough to need little memory and to stop soon.
    Files that tasks read must be visible to all workers.
    """

    def __init__(
        self, opens: Callable[[], AbstractContextManager[Executor]] | None = None, ahead: int = 64
    ) -> None:
        """Open nothing yet."""
        self._opens, self._ahead, self._opened = opens, ahead, ExitStack()
        self._executor: Executor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: Any) -> None:
        self._executor = None
        self._opened.__exit__(*error)

    def map(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield the result of each item in order; task, items and results are pickled for other processes.

        If workers die, others are opened and redo the missing tasks. Raises ValueError if they die three
        times without a result, and whatever a task raises.
        """
        if self._opens is None:
            yield from map(task, items)
            return
        source, failed = iter(items), 0
        running = deque[tuple[Item, Future[Result]]]()
        try:
            while True:
                for item in islice(source, self._ahead - len(running)):
                    running.append((item, self._submit(task, item)))
                if not running:
                    return
                try:
                    result = running[0][1].result()
                except BrokenExecutor as error:
                    failed += 1
                    if failed == _ATTEMPTS:
                        words = f"workers died {_ATTEMPTS} times, perhaps for want of memory"
                        raise ValueError(words) from error
                    self.__exit__(type(error), error, error.__traceback__)
                    running = deque(
                        (item, future if _is_done(future) else self._submit(task, item))
                        for item, future in running
                    )
                    continue
                running.popleft()
                failed = 0
                yield result
        finally:
            for _, future in running:
                future.cancel()

    def _submit(self, task: Callable[[Item], Result], item: Item) -> Future[Result]:
        """Return the future of a task, which fails at once if the workers are already lost."""
        try:
            if self._executor is None:
                assert self._opens is not None, "items are not run by this process"
                self._executor = self._opened.enter_context(self._opens())
            return self._executor.submit(task, item)
        except BrokenExecutor as error:
            future: Future[Result] = Future()
            future.set_exception(error)
            return future


def _is_done(future: Future[Any]) -> bool:
    """Return whether there is a result, or an error raised by the task."""
    if not future.done() or future.cancelled():
        return False
    return not isinstance(future.exception(), BrokenExecutor)


@contextmanager
def open_processes(jobs: int) -> Iterator[Executor]:
    """Yield an executor with ``jobs`` processes, spawned: threads of a runtime do not survive a fork.

    They do not run the script of this process, so that it needs no main guard. At the end of the block they
    are idle, or killed if an exception or an interrupt ends it.
    """
    check_current_folder()
    _start_resource_tracker()
    running_before = set(multiprocessing.active_children())
    context = FreshContext()
    end, alive = context.Pipe(duplex=False)
    with end, alive:
        executor = ProcessPoolExecutor(jobs, context, _begin, (end,))
        try:
            with interrupts_for_this_process_alone(), _signals_deferred():
                for _ in range(jobs):  # the executor starts one process for each task that finds none idle
                    executor.submit(int)
            yield executor
        except BaseException:
            with _quiet_threads():
                for process in set(multiprocessing.active_children()) - running_before:
                    process.kill()
                executor.shutdown(cancel_futures=True)
            raise
        executor.shutdown()


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Let the executor's thread fail on cancelled tasks when its processes were killed."""
    before, threading.excepthook = threading.excepthook, lambda failed: None
    try:
        yield
    finally:
        threading.excepthook = before


def check_current_folder() -> None:
    """Raise OSError in one line if the current folder was removed, since no process can then start."""
    try:
        Path.cwd()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the current folder, in which processes start") from error


@contextmanager
def interrupts_for_this_process_alone() -> Iterator[None]:
    """Block interrupts in processes started meanwhile: a terminal sends them to all.

    The signal mask is inherited from this thread.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    _start_resource_tracker()  # started later it would unblock interrupts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Delay signals that end this process to the end of the block: half a process would print an error."""
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
    """Start the process that removes semaphores after this one, without its warning of a leak."""
    sys.warnoptions.append(_NO_WARNING)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(_NO_WARNING)


def _begin(end: Connection) -> None:
    """Ignore interrupts, multiply matrices on one thread, and end when the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(end,), daemon=True).start()
    start_products_on_one_thread()


def _end_with(end: Connection) -> None:
    try:
        end.recv()
    finally:
        os._exit(1)
