"""The codes of a block format and their layout in bytes.

Codes of 2 to 8 bits are stored without gaps, in planes of 1, 2, 4 or 8 bits that fill whole bytes: a 6-bit
code has its 4 low bits in one plane and its 2 high bits in another. A byte of a plane is decoded by looking
up one row of a table, which has all of its codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BlockLayout:
    """A tensor as [outer, length, inner], with blocks and sub-blocks along the length.

    The last block or sub-block may be short.
    """

    shape: tuple[int, ...]
    cut: tuple[int, int, int]
    block: int
    group: int

    @classmethod
    def along(cls, shape: Sequence[int], axis: int, block: int, group: int) -> BlockLayout:
        """Return the layout of blocks along an axis of a tensor with elements and a rank above 0."""
        axis %= len(shape)
        cut = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        return cls(tuple(shape), cut, block, group)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.cut)

    @property
    def place_type(self) -> np.dtype[Any]:
        """The dtype of indices into the flat tensor."""
        return np.dtype(np.int32 if self.size < 2**31 else np.int64)

    def starts(self, size: int) -> NDArray[np.intp]:
        """Return the indices along the length at which blocks of a size begin."""
        return np.arange(0, self.cut[1], size)

    def count(self, size: int) -> int:
        """Return the number of blocks of a size in the tensor."""
        return self.cut[0] * -(-self.cut[1] // size) * self.cut[2]

    def wide(self, size: int) -> tuple[int, int, int, int]:
        """Return the shape [outer, blocks, elements of a block, inner] of whole blocks of a size."""
        outer, length, inner = self.cut
        return outer, -(-length // size), min(size, length), inner

    def spread(self, of_blocks: NDArray[Any], size: int) -> NDArray[Any]:
        """Repeat the entry of each block of a size for each of its elements."""
        outer, number, elements, inner = self.wide(size)
        each = of_blocks.reshape(outer, number, 1, inner)
        if self.cut[1] <= size:
            return np.broadcast_to(each.reshape(outer, 1, inner), self.cut)
        return np.repeat(each.reshape(outer, number, inner), elements, axis=1)[:, : self.cut[1]]


Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

WIDEST = 8
"""Largest number of bits of a code."""

BIAS = 127
"""Bias of a stored exponent."""


@dataclass(frozen=True, eq=False)
class Codes:
    """The codes of a format: ``values`` by code, the exponent of their unit, bits of sub-block shifts.

    ``detour``: added to the exponent of a block that has no codes with the usual one. ``is_complement``:
    negative numbers are in two's complement instead of sign and magnitude.
    """

    bits: int
    values: Float32
    unit: int
    detour: int = 0
    shift_bits: int = 0
    is_complement: bool = False

    @property
    def powers(self) -> Float32:
        """The factor of each stored exponent."""
        return np.ldexp(np.float32(1), np.minimum(np.arange(256) - BIAS - self.unit, 127)).astype(np.float32)

    @property
    def shift_powers(self) -> Float32:
        """The factor of each shift."""
        return np.ldexp(np.float32(1), -np.arange(2**self.shift_bits)).astype(np.float32)


def plane_widths(bits: int) -> tuple[int, ...]:
    """Return the widths of the planes of a code, lowest bits first: the powers of two in ``bits``."""
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def plane_bytes(count: int, bits: int) -> list[int]:
    """Return the size in bytes of each plane of ``count`` codes."""
    return [-(-count * width // 8) for width in plane_widths(bits)]


def join_planes(planes: list[Bytes], bits: int, count: int) -> Bytes:
    """Join planes to flat codes."""
    if bits == WIDEST:
        return planes[0][:count]
    plane_codes: list[Bytes] = []
    low = 0
    for plane, width in zip(planes, plane_widths(bits), strict=True):
        rows = (codes_in_bytes(width) << np.uint8(low)).view(f"u{8 // width}")  # a byte's codes as one number
        plane_codes.append(rows.reshape(256)[plane].view(np.uint8)[:count])
        low += width
    codes, *higher = plane_codes
    for part in higher:
        codes |= part
    return codes


def codes_in_bytes(width: int) -> NDArray[np.uint8]:
    """Return the codes in each byte of a plane, [256, 8 / width]."""
    shifts = np.arange(0, 8, width)
    return ((np.arange(256)[:, None] >> shifts) & (2**width - 1)).astype(np.uint8)
