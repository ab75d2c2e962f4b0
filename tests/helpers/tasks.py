"""Tasks for executors. The module is light: each new process imports it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Square:
    """A number to square, and a folder where each call leaves a file; ``dies``: this one ends its process.

    ``always``: at every call and not at the first alone.
    """

    number: float
    folder: str
    dies: bool = False
    always: bool = False


def square(task: Square) -> tuple[float, float]:
    """Return the square and twice the number, or end the worker, never the process that started it."""
    calls = len(list(Path(task.folder).glob(f"{task.number}-*")))
    Path(task.folder, f"{task.number}-{calls}").touch()
    if task.dies and (task.always or not calls):
        assert multiprocessing.parent_process() is not None
        os._exit(1)
    return task.number**2, 2 * task.number


def calls(folder: Path) -> dict[float, int]:
    """Return how often each number was asked for."""
    numbers = [float(path.name.rsplit("-", 1)[0]) for path in folder.iterdir()]
    return {number: numbers.count(number) for number in sorted(set(numbers))}


def interrupts(seconds: float) -> tuple[int, bool]:
    """Return the worker and whether it ignores interrupts, after a time in which others take tasks, too."""
    time.sleep(seconds)
    return os.getpid(), signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@dataclass(frozen=True)
class LateSquare:
    """A number to square after some seconds, and a folder where the call leaves a file."""

    number: float
    seconds: float
    folder: str


def late_square(task: LateSquare) -> tuple[float]:
    """Return the square, late."""
    Path(task.folder, f"late-{task.number}").touch()
    time.sleep(task.seconds)
    return (task.number**2,)
