"""Worker processes that do not import the user's script.

Python's spawned processes import the script that started them: without a main guard it would run again in
each of them, and from standard input there is nothing to import. Tasks are functions of modules and need no
script.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType

_MAIN = "__main__"
_starting = threading.Lock()


class FreshProcess(SpawnProcess):
    """A spawned process that does not import the script."""

    def start(self) -> None:
        """Start it. Its target and arguments must not be defined in the script either."""
        with _without_main():
            super().start()


class FreshContext(SpawnContext):
    """A multiprocessing context of such processes, for executors."""

    Process = FreshProcess


@contextmanager
def _without_main() -> Iterator[None]:
    """Replace ``__main__`` by an empty module meanwhile: multiprocessing reads from it what to import."""
    with _starting:
        script = sys.modules[_MAIN]
        sys.modules[_MAIN] = ModuleType(_MAIN)
        try:
            yield
        finally:
            sys.modules[_MAIN] = script
