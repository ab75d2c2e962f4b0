"""A file that results are added to as they arrive, so that a run that ends early loses none."""

from __future__ import annotations

import json
import os
from pathlib import Path

_WORDS = {"inf": float("inf"), "-inf": float("-inf")}

Numbers = tuple[float, ...]
"""The result of a task."""


class TaskLog:
    """Tuples of numbers by the name of what was computed, one line of JSON each.

    Numbers read back bit for bit. A last line that was cut off, and any other that is none, is passed over.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there; OSError where it can not be read."""
        self._path = path
        self._known: dict[str, Numbers] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    def get(self, name: str) -> Numbers | None:
        """Return what was computed, None where it is not there."""
        return self._known.get(name)

    def put(self, name: str, numbers: Numbers) -> None:
        """Add a result, which is on disk when this returns."""
        self._known[name] = numbers
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
