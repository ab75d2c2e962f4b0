"""Samples that a caller has in memory or generates: their number and their end."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

MOST = 100_000
"""Samples that are read from a data set without length before a limit is required."""

_SHARE = 2
"""Divisor of a disk's free space that samples may take."""

NO_SAMPLE = "the data hold no sample"


@runtime_checkable
class Reader(Protocol):
    """ONNX Runtime's CalibrationDataReader: a feed at each call, then None."""

    def get_next(self) -> Mapping[str, ArrayLike] | None:
        """Return the next feed, None after the last."""


def is_data_set(value: Any) -> bool:
    """Return whether samples are taken from an object directly; a data set may support only indices."""
    if isinstance(value, type):
        return False
    return isinstance(value, Reader) or any(
        hasattr(type(value), name) for name in ("__iter__", "__getitem__")
    )


def length_of(data: Any) -> int | None:
    """Return the length that a data set reports, or None."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # the answer of readers and endless data sets
        return None


def each_sample(data: Any, limit: int | None = None) -> Iterator[Any]:
    """Yield at most ``limit`` samples of a data set, or of one that a callable returns.

    A data set is a reader, an iterable, or an object with a sample for each index, in this order; the last
    must have one for each index below its length. Raises TypeError for anything else, and for a single
    sample instead of several; ValueError for a limit below 1, without any sample, and for a data set with
    neither length nor limit that does not end after :data:`MOST` samples.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit of {limit} samples, at least 1 is needed")
    data_set = data() if callable(data) and not is_data_set(data) else data
    if isinstance(data_set, Mapping):
        raise TypeError(f"samples are a {type(data_set).__name__}, which is one sample: give a list of them")
    if not is_data_set(data_set):
        raise TypeError(f"samples are a folder, a reader or an iterable, not {type(data_set).__name__}")
    length = length_of(data_set)
    most = min((bound for bound in (length, limit) if bound is not None), default=None)
    number = None
    for number, sample in enumerate(islice(_read(data_set, length), most)):
        if most is None and number == MOST:
            words = f"{type(data_set).__name__}, has no length and has not ended after {MOST:,} samples"
            raise ValueError(f"the data, a {words}: give a limit")
        yield sample
    if number is None:
        read_once = isinstance(data_set, Reader) or iter(data_set) is data_set
        raise ValueError(f"{NO_SAMPLE}; a reader or generator can be read once" if read_once else NO_SAMPLE)


def _read(data: Any, length: int | None) -> Iterable[Any]:
    if isinstance(data, Reader):
        return _of_reader(data)
    return data if hasattr(type(data), "__iter__") else _by_index(data, length)


def _of_reader(reader: Reader) -> Iterator[Mapping[str, ArrayLike]]:
    while (feed := reader.get_next()) is not None:
        if isinstance(feed, Mapping) and not feed:  # the end of some readers
            return
        yield feed


def _by_index(data: Any, length: int | None) -> Iterator[Any]:
    """Yield the sample of each index; without a length up to the first IndexError."""
    for i in count() if length is None else range(length):
        try:
            sample = data[i]
        except IndexError as error:
            if length is None:
                return
            raise ValueError(f"the data have a length of {length}, but no sample {i}: {error}") from error
        yield sample


def as_array(value: Any) -> np.ndarray:
    """Return an array, also from a tensor that must be detached and moved to the CPU first."""
    for step in ("detach", "cpu", "numpy"):
        value = getattr(value, step)() if hasattr(value, step) else value
    return np.asarray(value)


def arrays_of(sample: Any) -> dict[str, np.ndarray] | list[np.ndarray]:
    """Return the arrays of a sample by input name, or in the order of the inputs, extra ones included."""
    if isinstance(sample, Mapping):
        return {str(name): as_array(value) for name, value in sample.items()}
    return [as_array(part) for part in (sample if isinstance(sample, tuple | list) else [sample])]


class Room:
    """The space that samples may take in a folder: half of what is free, so that no disk fills up."""

    def __init__(self, folder: Path) -> None:
        """Measure the free space."""
        self._folder = folder
        self._most = shutil.disk_usage(folder).free // _SHARE
        self._taken = self._count = 0

    def take(self, size: int) -> None:
        """Reserve the bytes of a sample; raise ValueError if they do not fit."""
        self._taken, self._count = self._taken + size, self._count + 1
        if self._taken > self._most:
            words = f"the first {self._count:,} samples take {self._taken:,} bytes"
            where = f"in '{self._folder}', at most {self._most:,}, half of what is free, are written"
            raise ValueError(f"{words}: {where}: give a limit, or set TMPDIR to a larger disk")
