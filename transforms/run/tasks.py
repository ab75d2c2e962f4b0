"""Pure tasks on any executor of ``concurrent.futures``, with results kept as they arrive."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

_Task = TypeVar("_Task")

Workers = Callable[[], AbstractContextManager[Executor]]
"""Opens the workers; again where they have died."""

Progress = Callable[[int, int, str], None]

Numbers = tuple[float, ...]
"""The result of a task."""

_ATTEMPTS = 3
_IN_FLIGHT = 64
"""Tasks that are handed over at a time: enough to keep a cluster busy, few enough to stop soon."""

_WORDS = {"inf": float("inf"), "-inf": float("-inf")}


class TaskLog:
    """A file of results by the name of what was computed, one line of JSON each, on disk as they arrive.

    Numbers read back bit for bit. A last line that was cut off is passed over, and so is any other text.
    """

    def __init__(self, path: Path | None) -> None:
        """Read what is there; OSError where it cannot be read. Without a path results are in memory alone."""
        self._path = path
        self._known: dict[str, Numbers] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    def get(self, name: str) -> Numbers | None:
        """Return what was computed, None where it is not there."""
        return self._known.get(name)

    def put(self, name: str, numbers: Numbers) -> None:
        """Add a result, which is on disk when this returns."""
        self._known[name] = numbers
        if self._path is None:
            return
        written = [str(value) if value in _WORDS.values() else value for value in numbers]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps([name, *written]))  # a torn line before this one stays alone
            file.flush()
            os.fsync(file.fileno())

    def _read(self, line: str) -> None:
        try:
            name, first, *more = json.loads(line)
            self._known[str(name)] = tuple(
                _WORDS[value] if isinstance(value, str) else float(value) for value in (first, *more)
            )
        except (ValueError, TypeError, KeyError):
            return


class SerialExecutor(Executor):
    """Runs each task in this process when it is handed over."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that is done already; exceptions go straight to the caller."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class KeptWorkers:
    """Workers that stay open from one use to the next, until one fails; closed at the end of the block."""

    def __init__(self, workers: Workers) -> None:
        """Keep what opens them; it is called at the first use."""
        self._workers, self._opened = workers, ExitStack()
        self._executor: Executor | None = None

    def __enter__(self) -> KeptWorkers:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        self._executor = None
        return self._opened.__exit__(*error)

    @contextmanager
    def __call__(self) -> Iterator[Executor]:
        """Yield the executor; what the block raises closes it, and another is opened for the next use."""
        if self._executor is None:
            self._executor = self._opened.enter_context(self._workers())
        try:
            yield self._executor
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise


def run_tasks(
    task: Callable[[_Task], Numbers],
    items: Mapping[str, _Task],
    workers: Workers,
    log: TaskLog,
    progress: Progress | None = None,
) -> dict[str, Numbers]:
    """Return the result of each item by its name, in the order of the items, whatever the executor.

    What the log has is not computed again, and what is computed is put there at once. Where workers die,
    others are opened for what is missing. ``progress`` is told how many of how many are done, and which was
    the last. Raises ValueError where workers die again and again, and whatever a task raises.
    """
    for _ in range(_ATTEMPTS):
        missing = {name: item for name, item in items.items() if log.get(name) is None}
        if not missing:
            break
        try:
            with workers() as executor:
                for name, value in _arriving(executor, task, missing):
                    log.put(name, value)
                    if progress:
                        progress(sum(log.get(one) is not None for one in items), len(items), name)
        except BrokenExecutor:
            continue
    values = {name: log.get(name) for name in items}
    lost = [name for name, value in values.items() if value is None]
    if lost:
        raise ValueError(
            f"{len(lost)} of {len(items)} measurements were lost, '{lost[0]}' the first:"
            f" workers died {_ATTEMPTS} times, perhaps for want of memory"
        )
    return {name: value for name, value in values.items() if value is not None}


def _arriving(
    executor: Executor, task: Callable[[_Task], Numbers], items: Mapping[str, _Task]
) -> Iterator[tuple[str, Numbers]]:
    """Yield results in the order in which they are done, all of them before anything is raised."""
    ahead = 1 if isinstance(executor, SerialExecutor) else _IN_FLIGHT
    waiting = iter(items.items())
    running: dict[Future[Numbers], str] = {}
    try:
        while True:
            for name, item in islice(waiting, ahead - len(running)):
                running[executor.submit(task, item)] = name
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=_has_failed):
                yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()  # nothing is waited for that nobody asks for any more


def _has_failed(future: Future[Numbers]) -> bool:
    return future.cancelled() or future.exception() is not None
