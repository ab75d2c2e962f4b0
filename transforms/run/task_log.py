"""A log of numbers by task name, from which an interrupted run resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from transforms.run.events import Progress
from transforms.run.workers import Workers

__all__ = ["Item", "Numbers", "Progress", "TaskLog"]

Item = TypeVar("Item")
Numbers = tuple[float, ...]

_WORDS = {"inf": float("inf"), "-inf": float("-inf")}


class TaskLog:
    """Results of tasks by name, one line of JSON each, written to disk as they arrive.

    Numbers are read back bit for bit. Truncated lines and other text are skipped.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the log if there is one; OSError if it cannot be read. Without a path nothing is written."""
        self._path = path
        self._known: dict[str, Numbers] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    @property
    def folder(self) -> Path:
        """The folder of the log, for files beside it; ValueError for a log without a path."""
        if self._path is None:
            raise ValueError("the log has no file")
        return self._path.parent

    def get(self, name: str) -> Numbers | None:
        """Return a stored result, or None."""
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

    def run(
        self,
        task: Callable[[Item], Numbers],
        items: Mapping[str, Item],
        workers: Workers,
        progress: Progress | None = None,
    ) -> list[Numbers]:
        """Return the results of all items in order; missing ones are computed and added.

        ``progress`` receives how many of how many are done, and the name of the last. Raises what
        :meth:`transforms.run.workers.Workers.map` does.
        """
        missing = [name for name in items if name not in self._known]
        results = workers.map(task, (items[name] for name in missing))
        done = len(items) - len(missing)
        for number, (name, numbers) in enumerate(zip(missing, results, strict=True), 1):
            self.put(name, numbers)
            if progress:
                progress(done + number, len(items), name)
        return [self._known[name] for name in items]

    def _read(self, line: str) -> None:
        try:
            name, first, *more = json.loads(line)
            self._known[str(name)] = tuple(
                _WORDS[value] if isinstance(value, str) else float(value) for value in (first, *more)
            )
        except (ValueError, TypeError, KeyError):
            return
