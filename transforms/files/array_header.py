"""Headers of .npy files, alone or in an archive, checked before the array is read."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import IO

import numpy as np

EXPANSION = 100
"""Largest ratio of compression: real samples compress to a half at best, zeros to a thousandth."""

SMALL = 1 << 28
"""Bytes up to which an array may have any ratio of compression."""


@dataclass(frozen=True)
class ArrayHeader:
    """Type and shape of an array that has not been read."""

    dtype: np.dtype
    shape: tuple[int, ...]


def read_header(file: IO[bytes], size: int) -> ArrayHeader:
    """Return the header at the start of ``size`` bytes in .npy format.

    Raises ValueError for objects, which would have to be unpickled, and for fewer bytes than the array takes.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Object arrays are never unpickled")
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape {list(shape)} has a negative dimension")
    claimed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if claimed > held:
        raise ValueError(f"its shape {list(shape)} of {dtype} claims {claimed:,} bytes, it holds {held:,}")
    return ArrayHeader(dtype.newbyteorder("="), shape)  # as arrays are read


def refuse_expansion(size: int, stored: int) -> None:
    """Raise ValueError if stored bytes expand to far more than real numbers would."""
    if size > max(SMALL, EXPANSION * stored):
        raise ValueError(
            f"{stored:,} stored bytes expand to {size:,}, above the limits of {SMALL:,} and of {EXPANSION} "
            "times as many"
        )


def stored_bytes(file: IO[bytes]) -> int:
    """Return the number of bytes of an open file on disk, without holes."""
    status = os.fstat(file.fileno())
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, 512 * blocks)
