"""Shapes of packed inputs that few nodes can decode: each byte lies where its elements will be.

Arrays folded when a session is created stay in memory until folding ends, so each array as large as a weight
counts. Here a byte indexes a row with all of its elements, and the numbers have a shape to which powers of
two broadcast.

A weight has such shapes if its blocks are all full and the elements along its last axis fill bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from transforms.features.packed.code_layout import BlockLayout, Codes, codes_in_bytes, plane_widths

ROWS, COLUMNS = "_rows", "_columns"
"""Whether blocks run along the last axis of [outer, length, inner] longer than 1, or an earlier one."""

LARGE = 1 << 18
"""Elements from which a weight is decoded this way: the tables take up to 64 KiB."""

BESIDE_LARGE = 1 << 14
"""The same for a model that already has the tables for a large weight."""

_MOST_PLANES = 2  # in one index
_LEAST = 2.0**-149  # of float32

Shape = tuple[int, ...]


def form_of(layout: BlockLayout) -> str:
    """Return the form of a layout, rows or columns."""
    return ROWS if layout.cut[2] == 1 else COLUMNS


@dataclass(frozen=True)
class Lanes:
    """How many neighbours along the last axis a byte covers; each of ``sizes`` divides the next.

    ``planes`` and ``shifts``: elements that a byte of these inputs covers, 0 without shifts; ``shared``:
    neighbours with the same shift.
    """

    codes: Codes
    planes: tuple[int, ...]
    shifts: int
    shared: int

    @classmethod
    def of(cls, codes: Codes, group: int, form: str) -> Lanes | None:
        """Return the lanes of a format, or None if bytes do not nest or need more than one index."""
        shared = group if codes.shift_bits and form == ROWS else 1
        shifts = shared * 8 // shift_width(codes) if codes.shift_bits else 0
        lanes = cls(codes, tuple(8 // width for width in plane_widths(codes.bits)), shifts, shared)
        pairs = pairwise(lanes.sizes)
        if any(after % before for before, after in pairs) or len(lanes.planes) > _MOST_PLANES:
            return None
        has_all_powers = float(codes.powers.min()) * float(codes.shift_powers.min()) >= _LEAST
        return lanes if has_all_powers else None

    @property
    def sizes(self) -> Shape:
        """All coverages of bytes and shifts, ascending."""
        return tuple(sorted({*self.planes, *((self.shifts, self.shared) if self.shifts else ())}))

    def stored(self, extent: int, cover: int) -> Shape:
        """Return the shape of bytes that cover ``cover`` elements each along an axis of length ``extent``."""
        sizes = (*self.sizes[self.sizes.index(cover) :], extent)
        return tuple(after // before for before, after in pairwise(sizes))[::-1]

    def row(self, cover: int) -> Shape:
        """Return the shape of the elements that a byte covers, appended to the shape of the bytes."""
        sizes = (1, *self.sizes[: self.sizes.index(cover) + 1])
        return tuple(after // before for before, after in pairwise(sizes))[::-1]

    def _units(self, cover: int, unit: int) -> Shape:
        """Return the leading shape of a row, which indexes the rows of smaller bytes."""
        return self.row(cover)[: self.sizes.index(cover) - self.sizes.index(unit)]

    def values(self) -> NDArray[np.float32]:
        """Return the numbers by index: the low byte, and above it the bits of its codes in other planes."""
        low, *high = plane_widths(self.codes.bits)
        codes, count = codes_in_bytes(low)[None].astype(int), self.planes[0]
        if high:
            above = np.arange(1 << (high[0] * count))[:, None] >> np.arange(0, high[0] * count, high[0])
            codes = codes + ((above % (1 << high[0])) << low)[:, None]
        return self.codes.values[codes].reshape(-1, *self.row(count))

    def offsets(self) -> NDArray[np.int32]:
        """Return what a byte of the second plane adds to the indices from the first."""
        first, second = self.planes
        bits = 8 * first // second
        parts = np.arange(256)[:, None] >> np.arange(0, 8, bits) & (1 << bits) - 1
        return (parts * 256).astype(np.int32).reshape(256, *self._units(second, first))

    def shift_powers(self) -> NDArray[np.float32]:
        """Return the factors of the elements that a byte of shifts covers, one for each shift."""
        powers = self.codes.shift_powers[
            codes_in_bytes(shift_width(self.codes)) % (1 << self.codes.shift_bits)
        ]
        if self.shared == 1:
            return powers.reshape(256, *self.row(self.shifts))
        once = (1,) * (self.sizes.index(self.shared) + 1)
        return powers.reshape(256, *self._units(self.shifts, self.shared), *once)

    def shapes(self, layout: BlockLayout) -> list[Shape] | None:
        """Return the shapes of planes, exponents and shifts, or None if blocks or bytes are not full."""
        outer, number, elements, inner = layout.wide(layout.block)
        is_row = form_of(layout) == ROWS
        extent = elements if is_row else inner
        has_whole_blocks = number * elements == layout.cut[1] and elements % layout.group == 0
        if not has_whole_blocks or extent % self.sizes[-1]:
            return None
        lead = (outer, number) if is_row else (outer, number, elements // layout.group, layout.group)
        shapes = [(*lead, *self.stored(extent, cover)) for cover in self.planes]
        tail = (extent // self.sizes[-1], *self.row(self.sizes[-1]))
        once = (outer, number, *(1 for _ in tail)) if is_row else (outer, number, 1, 1, *tail)
        shapes.append(once)
        if self.shifts:
            before = lead if is_row else (*lead[:3], 1)
            shapes.append((*before, *self.stored(extent, self.shifts)))
        return shapes


def input_shapes(codes: Codes, layout: BlockLayout) -> list[Shape] | None:
    """Return the shapes of planes, exponents and shifts of a weight, or None."""
    lanes = Lanes.of(codes, layout.group, form_of(layout))
    return lanes.shapes(layout) if lanes else None


def shift_width(codes: Codes) -> int:
    """Return the width of the plane of shifts: their bits, rounded up to a power of two."""
    return next(width for width in (1, 2, 4, 8) if width >= codes.shift_bits)
