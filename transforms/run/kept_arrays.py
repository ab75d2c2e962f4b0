"""Arrays kept for long: in memory up to a limit, and beyond it in unnamed files.

The files are in the folder for temporary files (``TMPDIR``); each is freed with the last array on it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key")
Kept = TypeVar("Kept")

IN_MEMORY = 1 << 24
"""Bytes of reference outputs that stay in memory."""

_NUMBERS = "fiubc"  # NumPy's own types, which a file is mapped as

Value = NDArray[Any] | list[NDArray[Any]]
"""What is kept of a sample: an array, or a sequence of arrays."""


def bytes_of(value: Value) -> int:
    """Return the size in bytes of a value's arrays."""
    return sum(map(bytes_of, value)) if isinstance(value, list) else value.nbytes


def _on_file(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy on a file; OSError if the file cannot be written."""
    with tempfile.TemporaryFile() as file:
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        return np.memmap(file, array.dtype, "r", shape=array.shape)


def _is_mappable(array: NDArray[Any]) -> bool:
    return bool(array.nbytes) and array.dtype.kind in _NUMBERS


class KeptArrays:
    """Keeps arrays; those that would take more than ``limit`` bytes (None: 16 MiB) are read from files."""

    def __init__(self, limit: int | None = None) -> None:
        """Start empty."""
        self._bytes, self._limit = 0, IN_MEMORY if limit is None else limit

    def keep(self, made: Mapping[Key, Kept]) -> dict[Key, Kept]:
        """Return read-only arrays with the same keys; sequences of arrays stay in memory.

        OSError if the file cannot be written.
        """
        return {key: cast(Kept, self._keep(x)) if isinstance(x, np.ndarray) else x for key, x in made.items()}

    def _keep(self, array: NDArray[Any]) -> NDArray[Any]:
        self._bytes += array.nbytes
        return _on_file(array) if self._bytes > self._limit and _is_mappable(array) else array


class ActivationStore:
    """Tensors that a model in steps passes on to later steps, in memory up to ``limit`` bytes (None: all)."""

    def __init__(self, limit: int | None = None) -> None:
        """Start empty."""
        self._limit, self._bytes = limit, 0
        self._arrays: dict[tuple[int, str], Value] = {}

    def __enter__(self) -> ActivationStore:
        return self

    def __exit__(self, *error: object) -> None:
        self._arrays.clear()

    def put(self, sample: int, name: str, value: Value) -> None:
        """Keep an array, or a sequence of them."""
        kept = [self._kept(array) for array in value] if isinstance(value, list) else self._kept(value)
        self._arrays[sample, name] = kept

    def get(self, sample: int, name: str) -> Any:
        """Return a stored value."""
        return self._arrays[sample, name]

    def drop(self, sample: int, name: str) -> None:
        """Drop a value, if it is stored."""
        value = self._arrays.pop((sample, name), [])
        arrays = value if isinstance(value, list) else [value]
        self._bytes -= sum(array.nbytes for array in arrays if not isinstance(array, np.memmap))

    def _kept(self, array: NDArray[Any]) -> NDArray[Any]:
        if self._limit is not None and self._bytes + array.nbytes > self._limit and _is_mappable(array):
            return _on_file(array)
        self._bytes += array.nbytes
        return array
