"""Codes of 2 to 8 bits stored without a gap, in planes of 1, 2, 4 or 8 bits that fill whole bytes.

A code of 6 bits is 4 low bits in one plane and 2 high bits in another: whatever reads a byte of a plane finds
all of its codes in one row of a table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def widths(bits: int) -> tuple[int, ...]:
    """Return the widths of the planes of a code, that of its lowest bits first: the powers of two in it."""
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def plane_bytes(count: int, bits: int) -> list[int]:
    """Return the sizes in bytes of the planes of so many codes."""
    return [-(-count * width // 8) for width in widths(bits)]


def split(codes: Bytes, bits: int) -> list[Bytes]:
    """Return the planes of flat codes; zeros fill the last byte of each."""
    planes: list[Bytes] = []
    low = 0
    for width in widths(bits):
        part: Bytes = (codes >> np.uint8(low)) & np.uint8(2**width - 1)
        low += width
        in_byte = 8 // width
        part = np.pad(part, (0, -part.size % in_byte)).reshape(-1, in_byte)
        packed = part[:, 0].copy()
        for place in range(1, in_byte):
            packed |= part[:, place] << np.uint8(width * place)
        planes.append(packed)
    return planes


def join(planes: list[Bytes], bits: int, count: int) -> Bytes:
    """Return the flat codes whose planes these are."""
    codes, low = np.zeros(count, np.uint8), 0
    for plane, width in zip(planes, widths(bits), strict=True):
        shifts = np.arange(0, 8, width, dtype=np.uint8)
        part = (plane[:, None] >> shifts) & np.uint8(2**width - 1)
        codes |= part.reshape(-1)[:count] << np.uint8(low)
        low += width
    return codes


def rows(width: int) -> NDArray[np.uint8]:
    """Return the codes in each byte of a plane, [256, 8 / width]."""
    shifts = np.arange(0, 8, width)
    return ((np.arange(256)[:, None] >> shifts) & (2**width - 1)).astype(np.uint8)
