"""Files mapped into memory, and the place in its file of an array that is a view."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAGES = 1 << 26
"""Bytes requested from a mapped file after which its pages are released: reading loads them again."""

_GIVES_BACK = hasattr(mmap, "MADV_DONTNEED")  # missing on Windows


class MappedFile(mmap.mmap):
    """A file mapped for reading, with its path and its state at that time.

    ``taken``: bytes requested since its pages were released.
    """

    path: Path
    state: tuple[int, ...]
    taken: int = 0

    def take(self, count: int) -> None:
        """Count bytes that will be read; pages that were read count as memory of the process."""
        self.taken += count
        if self.taken > _PAGES and _GIVES_BACK:
            self.madvise(mmap.MADV_DONTNEED)
            self.taken = count


@dataclass(frozen=True)
class FilePlace:
    """The place of an array's bytes in a file; the path is absolute."""

    path: Path
    offset: int
    length: int


def map_file(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a non-empty file, read-only and mapped; OSError if it cannot be opened."""
    with path.open("rb") as file:
        content = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        content.path, content.state = path.resolve(), _state(os.fstat(file.fileno()))
    return np.frombuffer(content, np.uint8)


def file_of(array: NDArray[Any]) -> MappedFile | None:
    """Return the mapped file of which an array is a view, or None."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base if isinstance(base, MappedFile) else None


def place_of(array: NDArray[Any]) -> FilePlace | None:
    """Return the place of an array's bytes in its file.

    None for other arrays, for views that are not contiguous, and if the path no longer leads to the mapped
    file, or the file has changed.
    """
    file = file_of(array)
    if file is None or not array.flags.c_contiguous:
        return None
    try:
        if _state(file.path.stat()) != file.state:
            return None
    except OSError:
        return None
    offset = array.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    return FilePlace(file.path, offset, array.nbytes)


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
