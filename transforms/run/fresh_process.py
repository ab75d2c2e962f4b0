"""Processes that do not run the user's script again.

Python's spawned processes import the script that started them: without a main guard it runs again in each
of them, and from standard input there is nothing to import. Tasks are functions of modules, which need none.
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
        """Start it. What it is given must not be of the script either."""
        with _without_main():
            super().start()


class FreshContext(SpawnContext):
    """What makes processes of that kind, for executors."""

    Process = FreshProcess


@contextmanager
def _without_main() -> Iterator[None]:
    """Let an empty module stand for the script meanwhile: multiprocessing looks there for what to import."""
    with _starting:
        script = sys.modules[_MAIN]
        sys.modules[_MAIN] = ModuleType(_MAIN)
        try:
            yield
        finally:
            sys.modules[_MAIN] = script
