"""Tensors of samples in a folder, for any process that reads it; samples of a part share a file.

A file appears whole, so that a task may be done twice, even at the same time.
"""

from __future__ import annotations

import hashlib
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_PARTS = 16


def parts_of(count: int) -> list[range]:
    """Return the numbers of ``count`` samples in parts of one size, at most 16; the last may be smaller."""
    size = -(-count // _PARTS)
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


class FolderStore:
    """Arrays by sample and name, of samples in parts of a ``size``."""

    def __init__(self, folder: Path, size: int) -> None:
        """Make the folder, if it is not there."""
        self.folder, self.size = folder, size
        folder.mkdir(exist_ok=True)
        self._written: dict[Path, tuple[Path, zipfile.ZipFile]] = {}
        self._read: dict[Path, np.lib.npyio.NpzFile] = {}

    def put(self, sample: int, name: str, array: np.ndarray) -> None:
        """Keep an array, to be read after :meth:`commit`; ValueError for strings."""
        if array.dtype.hasobject:
            raise ValueError(f"tensor '{name}' holds strings, which workers cannot hand on")
        path = self._path(sample, name)
        if path not in self._written:
            begun = _unfinished(path)
            self._written[path] = begun, zipfile.ZipFile(begun, "w")
        _write(self._written[path][1], str(sample), array)

    def commit(self) -> None:
        """Let the arrays of the parts that were put since the last time take their place."""
        for path, (begun, file) in self._written.items():
            file.close()
            begun.replace(path)
        self._written.clear()
        for read in self._read.values():
            read.close()
        self._read.clear()

    def get(self, sample: int, name: str) -> np.ndarray:
        """Return an array that was kept."""
        path = self._path(sample, name)
        if path not in self._read:
            self._read[path] = np.load(path, allow_pickle=False)
        return np.asarray(self._read[path][str(sample)])

    def drop(self, sample: int, name: str) -> None:
        """Drop the arrays of a part, if they are there, as its first sample is dropped."""
        if sample % self.size:
            return
        path = self._path(sample, name)
        if path in self._written:
            begun, file = self._written.pop(path)
            file.close()
            begun.unlink()
        path.unlink(missing_ok=True)

    def _path(self, sample: int, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self.folder / f"{sample // self.size}-{digest}.npz"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file that appears whole."""
    begun = _unfinished(path)
    with zipfile.ZipFile(begun, "w") as file:
        for name, array in arrays.items():
            _write(file, name, array)
    begun.replace(path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays that were written."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _write(file: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with file.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _unfinished(path: Path) -> Path:
    """Return another name beside a path: what a killed process leaves goes with the folder."""
    return path.with_name(f"{path.stem}-{secrets.token_hex(8)}.tmp")
