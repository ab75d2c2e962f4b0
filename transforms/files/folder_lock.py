"""Locks that end with their process, however it ends: of a file, and one for the writers of a folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE = 0.02  # seconds between two tries


def lock(descriptor: int) -> bool:
    """Lock an open file; return False if another process holds the lock. OSError without support of locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(folder: Path, patience: float = 60.0) -> Iterator[bool]:
    """Hold the lock of a folder, also against other threads; yield whether it was acquired.

    It is not acquired in a folder that cannot be read or does not support locks, nor if another one holds it
    for more than ``patience`` seconds. One thread must not acquire it twice.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _wait(descriptor, time.monotonic() + patience)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, until: float) -> bool:
    try:
        while not lock(descriptor):
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE)
    except OSError:
        return False
    return True
