"""Tensors of samples in a folder, for any process that reads it; samples of a part share a file.

A file appears whole, so that a task may be done twice, even at the same time.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_PARTS = 16
_ALIGNED = 64  # bytes, as the runtime has its own tensors
_KINDS = "biufcSU"
_LENGTH = "length"  # of a sequence, whose arrays have numbers there


def parts_of(count: int) -> list[range]:
    """Return the numbers of ``count`` samples in parts of one size, at most 16; the last may be smaller."""
    size = -(-count // _PARTS)
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


class ArrayWriter:
    """Writes arrays to a file that appears whole, by :meth:`close`: their bytes, and then where they are."""

    def __init__(self, path: Path) -> None:
        """Begin under another name: what a killed process leaves goes with the folder."""
        self._path = path
        self._begun = path.with_name(f"{path.name}-{secrets.token_hex(8)}.tmp")
        self._file = self._begun.open("wb")
        self._places: dict[str, tuple[str, tuple[int, ...], int]] = {}

    def put(self, name: str, array: np.ndarray) -> None:
        """Add an array, of a type of NumPy's own."""
        self._file.write(bytes(-self._file.tell() % _ALIGNED))
        self._places[name] = array.dtype.str, array.shape, self._file.tell()
        self._file.write(np.ascontiguousarray(array).data if array.size else b"")

    def close(self) -> None:
        """Let the file take its place."""
        index = json.dumps(self._places).encode()
        self._file.write(index + len(index).to_bytes(8, "little"))
        self._file.close()
        self._begun.replace(self._path)

    def cancel(self) -> None:
        """Write no file."""
        self._file.close()
        self._begun.unlink()


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file that appears whole."""
    writer = ArrayWriter(path)
    for name, array in arrays.items():
        writer.put(name, array)
    writer.close()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays that were written, mapped: each is read when it is looked at."""
    content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    end = len(content) - 8 - int.from_bytes(content[-8:].tobytes(), "little")
    found = {}
    for name, (kind, shape, start) in json.loads(content[end:-8].tobytes()).items():
        dtype = np.dtype(kind)
        size = math.prod(shape) * dtype.itemsize
        found[name] = content[start : start + size].view(dtype).reshape(shape)
    return found


class FolderStore:
    """Arrays by sample and name, of samples in parts of a ``size``."""

    def __init__(self, folder: Path, size: int) -> None:
        """Make the folder, if it is not there."""
        self.folder, self.size = folder, size
        folder.mkdir(exist_ok=True)
        self._written: dict[Path, ArrayWriter] = {}
        self._read: dict[Path, dict[str, np.ndarray]] = {}

    def put(self, sample: int, name: str, value: np.ndarray | list[np.ndarray]) -> None:
        """Keep an array, or a sequence of them, to be read after :meth:`commit`.

        Raises ValueError for a type that is not NumPy's own.
        """
        arrays = value if isinstance(value, list) else [value]
        for array in arrays:
            if array.dtype.kind not in _KINDS:
                raise ValueError(f"sample {sample}, tensor '{name}': workers cannot take {array.dtype}")
        path = self._path(sample, name)
        if path not in self._written:
            self._written[path] = ArrayWriter(path)
        written = self._written[path]
        if not isinstance(value, list):
            written.put(f"{sample} {name}", value)
            return
        written.put(f"{sample} {name} {_LENGTH}", np.array(len(value)))
        for i, array in enumerate(value):
            written.put(f"{sample} {name} {i}", array)

    def commit(self) -> None:
        """Let the arrays of the parts that were put since the last time take their place."""
        for writer in self._written.values():
            writer.close()
        self._written.clear()
        self._read.clear()

    def get(self, sample: int, name: str) -> Any:
        """Return an array, or a sequence of them, that was kept."""
        path = self._path(sample, name)
        if path not in self._read:
            self._read[path] = read_arrays(path)
        arrays, key = self._read[path], f"{sample} {name}"
        if (length := arrays.get(f"{key} {_LENGTH}")) is None:
            return arrays[key]
        return [arrays[f"{key} {i}"] for i in range(int(length))]

    def drop(self, sample: int, name: str) -> None:
        """Drop the arrays of a part, if they are there, as its first sample is dropped."""
        if sample % self.size:
            return
        path = self._path(sample, name)
        if path in self._written:
            self._written.pop(path).cancel()
        path.unlink(missing_ok=True)

    def _path(self, sample: int, name: str) -> Path:
        return self.folder / f"{sample // self.size}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
