"""Samples along the first axis of an array, of arrays by input name, or of those in an .npy or .npz file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ops.array_types import AnyArray
from transforms.files.array_archive import read_arrays
from transforms.files.named_file import named
from transforms.run.array_files import read_array_header
from transforms.run.data_sets import as_array

_SUFFIXES = (".npy", ".npz")


class Stacked(Sequence[Any]):
    """Samples stacked along the first axis of an array, or of several arrays by input name."""

    def __init__(self, arrays: AnyArray | Mapping[str, AnyArray], name: str = "") -> None:
        """Take arrays, and the ``name`` of their file.

        Raises ValueError for an array without a first axis, and for arrays of different lengths.
        """
        self._arrays, self._name = arrays, name
        lengths = {one: self._length(one, array) for one, array in self._by_name().items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{count} in '{one}'" for one, count in lengths.items())
            words = "one sample lies in a folder, or in a list"
            raise ValueError(f"{self._place}arrays of several lengths, {counts}: {words}")
        self._count = next(iter(lengths.values()), 0)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Return the arrays of a sample; IndexError beyond the last."""
        if isinstance(self._arrays, Mapping):
            return {name: array[index] for name, array in self._arrays.items()}
        return self._arrays[index]

    @property
    def line(self) -> str:
        """The samples in words: their number, and the type and shape of each array."""
        shapes = (
            f"{f'{name!r} ' if name else ''}{array.dtype} {list(array.shape[1:])}"
            for name, array in self._by_name().items()
        )
        place = f"'{self._name}'" if self._name else "the array"
        if isinstance(self._arrays, Mapping) and not self._name:
            place = "each array"
        return f"Samples: {self._count} along the first axis of {place}: {', '.join(shapes)}"

    @property
    def _place(self) -> str:
        return f"'{self._name}': " if self._name else ""

    def _by_name(self) -> Mapping[str, AnyArray]:
        return self._arrays if isinstance(self._arrays, Mapping) else {"": self._arrays}

    def _length(self, name: str, array: AnyArray) -> int:
        if array.ndim == 0:
            raise ValueError(f"{self._place}array {f'{name!r} ' if name else ''}has no axis of samples")
        return len(array)


def stacked(data: Any) -> Any:
    """Return the samples of an array, a mapping of arrays, or a file; other data are returned unchanged.

    Raises ValueError as :class:`Stacked`, and for a file that cannot be read, or has another suffix.
    """
    if isinstance(data, Mapping):
        return Stacked({str(name): as_array(array) for name, array in data.items()})
    if isinstance(data, np.ndarray) and data.ndim:
        return Stacked(data)
    if isinstance(data, str | os.PathLike) and Path(data).is_file():
        return _of_file(Path(data))
    return data


def _of_file(path: Path) -> Stacked:
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ValueError(f"'{path}' is a file: samples are a folder, or in one {' or '.join(_SUFFIXES)} file")
    if suffix == ".npz":
        with named(path):
            return Stacked(read_arrays(path), str(path))
    read_array_header(path)
    with named(path):
        return Stacked(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
