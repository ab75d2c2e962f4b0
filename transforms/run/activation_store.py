"""What a model in steps leaves to later steps: in memory up to a limit, and in files beyond."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from transforms.files import cleanup

Value = np.ndarray | list[np.ndarray]
"""What is kept of a sample: an array, or a sequence of them."""


def bytes_of(value: Value) -> int:
    """Return the bytes of the numbers of a value."""
    return sum(map(bytes_of, value)) if isinstance(value, list) else value.nbytes


class ActivationStore:
    """Values by key, in memory until ``limit`` bytes are there (None: without limit), then in files."""

    def __init__(self, limit: int | None = None) -> None:
        """Start without any array."""
        self._limit, self._bytes, self._number = limit, 0, 0
        self._arrays: dict[tuple[int, str], Value] = {}
        self._opened = ExitStack()
        self._folder: Path | None = None

    def __enter__(self) -> ActivationStore:
        return self

    def __exit__(self, *error: object) -> None:
        self._arrays.clear()
        self._opened.close()
        self._folder = None

    def put(self, sample: int, name: str, value: Value) -> None:
        """Keep an array, or a sequence of them."""
        kept = [self._kept(array) for array in value] if isinstance(value, list) else self._kept(value)
        self._arrays[sample, name] = kept

    def get(self, sample: int, name: str) -> Any:
        """Return a value that was kept."""
        return self._arrays[sample, name]

    def drop(self, sample: int, name: str) -> None:
        """Drop a value, if it is there."""
        value = self._arrays.pop((sample, name), [])
        for array in value if isinstance(value, list) else [value]:
            if isinstance(array, np.memmap):
                Path(str(array.filename)).unlink(missing_ok=True)
            else:
                self._bytes -= array.nbytes

    def _kept(self, array: np.ndarray) -> np.ndarray:
        if self._limit is not None and self._bytes + array.nbytes > self._limit and array.nbytes:
            return self._to_file(array)
        self._bytes += array.nbytes
        return array

    def _to_file(self, array: np.ndarray) -> np.ndarray:
        if self._folder is None:
            self._folder = self._opened.enter_context(cleanup.temporary_folder())
        path = self._folder / f"{self._number}.npy"
        self._number += 1
        np.save(path, array, allow_pickle=False)
        return np.asanyarray(np.load(path, mmap_mode="r"))
