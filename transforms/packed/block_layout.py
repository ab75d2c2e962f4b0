"""How the blocks of a format lie in a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BlockLayout:
    """A tensor as [outer, length, inner], with blocks and sub-blocks along the length; the last may be
    short."""

    shape: tuple[int, ...]
    cut: tuple[int, int, int]
    block: int
    group: int

    @classmethod
    def along(cls, shape: Sequence[int], axis: int, block: int, group: int) -> BlockLayout:
        """Return the layout of blocks along an axis of a tensor that is neither empty nor a single number."""
        axis %= len(shape)
        cut = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        return cls(tuple(shape), cut, block, group)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.cut)

    @property
    def place_type(self) -> np.dtype[Any]:
        """The type of places in the flat tensor."""
        return np.dtype(np.int32 if self.size < 2**31 else np.int64)

    def starts(self, size: int) -> NDArray[np.intp]:
        """Return the places along the length at which blocks of a size begin."""
        return np.arange(0, self.cut[1], size)

    def count(self, size: int) -> int:
        """Return the number of blocks of a size in the tensor."""
        return self.cut[0] * -(-self.cut[1] // size) * self.cut[2]

    def wide(self, size: int) -> tuple[int, int, int, int]:
        """Return the shape [outer, blocks, elements of a block, inner] of whole blocks of a size."""
        outer, length, inner = self.cut
        return outer, -(-length // size), min(size, length), inner

    def spread(self, of_blocks: NDArray[Any], size: int) -> NDArray[Any]:
        """Return one entry for each element from one for each block of a size."""
        outer, number, elements, inner = self.wide(size)
        each = of_blocks.reshape(outer, number, 1, inner)
        if self.cut[1] <= size:
            return np.broadcast_to(each.reshape(outer, 1, inner), self.cut)
        return np.repeat(each.reshape(outer, number, inner), elements, axis=1)[:, : self.cut[1]]
