"""Arrays that are kept for long, such as outputs to compare with: a few in memory, the rest in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key")
Value = TypeVar("Value")

IN_MEMORY = 1 << 24
"""Bytes that stay in memory."""

_NUMBERS = "fiubc"  # NumPy's own types, which a file is mapped as


class KeptArrays:
    """Keeps arrays; those that would take more than ``IN_MEMORY`` are read from a file without a name.

    The file is in the folder for temporary ones (``TMPDIR``) and goes with the last array on it.
    """

    def __init__(self) -> None:
        """Keep none yet."""
        self._bytes = 0

    def keep(self, made: Mapping[Key, Value]) -> dict[Key, Value]:
        """Return the same numbers by the same keys, not to be written to; sequences of arrays stay in memory.

        OSError if the file cannot be written.
        """
        return {
            key: cast(Value, self._keep(x)) if isinstance(x, np.ndarray) else x for key, x in made.items()
        }

    def _keep(self, array: NDArray[Any]) -> NDArray[Any]:
        self._bytes += array.nbytes
        if self._bytes <= IN_MEMORY or not array.nbytes or array.dtype.kind not in _NUMBERS:
            return array
        with tempfile.TemporaryFile() as file:
            file.write(np.ascontiguousarray(array).data)
            file.flush()
            return np.memmap(file, array.dtype, "r", shape=array.shape)
