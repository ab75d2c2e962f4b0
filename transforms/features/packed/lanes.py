"""Shapes of packed inputs with which few steps decode them: each byte lies where its elements will.

What is folded when a session is created stays in memory until all of it is, so that every array as large as
a weight counts. Here a byte is looked up as the row of all its elements, and the numbers come out in a shape
to which powers of two broadcast.

A weight has such shapes if its blocks are whole and the elements along its last axis fill bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from transforms.features.packed.code_layout import BlockLayout, Codes, codes_in_bytes, plane_widths

ROWS, COLUMNS = "_rows", "_columns"
"""Whether blocks run along the last axis of [outer, length, inner] that is longer than 1, or before it."""

LARGE = 1 << 18
"""Elements from which a weight is decoded so: the tables take up to 64 KiB."""

BESIDE_LARGE = 1 << 14
"""The same in a model that has the tables already, for a large weight."""

_MOST_PLANES = 2  # that one index is made of
_LEAST = 2.0**-149  # of float32

Shape = tuple[int, ...]


def form_of(layout: BlockLayout) -> str:
    """Return the form that a layout has."""
    return ROWS if layout.cut[2] == 1 else COLUMNS


@dataclass(frozen=True)
class Lanes:
    """How bytes cover neighbours along the last axis: each of ``sizes`` divides the next.

    ``planes`` and ``shifts``: elements that a byte of these inputs covers, 0 without shifts; ``shared``: how
    many neighbours share a shift.
    """

    codes: Codes
    planes: tuple[int, ...]
    shifts: int
    shared: int

    @classmethod
    def of(cls, codes: Codes, group: int, form: str) -> Lanes | None:
        """Return the lanes of a format, or None if bytes do not nest or give more than one index."""
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
        """All that bytes cover, and what shares a shift, ascending."""
        return tuple(sorted({*self.planes, *((self.shifts, self.shared) if self.shifts else ())}))

    def stored(self, extent: int, cover: int) -> Shape:
        """Return the shape of the bytes, each of which covers so many, along an axis of some extent."""
        sizes = (*self.sizes[self.sizes.index(cover) :], extent)
        return tuple(after // before for before, after in pairwise(sizes))[::-1]

    def row(self, cover: int) -> Shape:
        """Return the shape of the elements that a byte covers, which follows that of the bytes."""
        sizes = (1, *self.sizes[: self.sizes.index(cover) + 1])
        return tuple(after // before for before, after in pairwise(sizes))[::-1]

    def _units(self, cover: int, unit: int) -> Shape:
        """Return the beginning of the shape of a row, in which the rows of smaller bytes lie."""
        return self.row(cover)[: self.sizes.index(cover) - self.sizes.index(unit)]

    def values(self) -> NDArray[np.float32]:
        """Return the numbers for each index: low byte, and above it the bits of its codes in other planes."""
        low, *high = plane_widths(self.codes.bits)
        codes, count = codes_in_bytes(low)[None].astype(int), self.planes[0]
        if high:
            above = np.arange(1 << (high[0] * count))[:, None] >> np.arange(0, high[0] * count, high[0])
            codes = codes + ((above % (1 << high[0])) << low)[:, None]
        return self.codes.values[codes].reshape(-1, *self.row(count))

    def offsets(self) -> NDArray[np.int32]:
        """Return what a byte of the second plane adds to the indices of bytes of the first."""
        first, second = self.planes
        bits = 8 * first // second
        parts = np.arange(256)[:, None] >> np.arange(0, 8, bits) & (1 << bits) - 1
        return (parts * 256).astype(np.int32).reshape(256, *self._units(second, first))

    def shift_powers(self) -> NDArray[np.float32]:
        """Return the factors for the elements that a byte of shifts covers, one for those that share one."""
        powers = self.codes.shift_powers[
            codes_in_bytes(shift_width(self.codes)) % (1 << self.codes.shift_bits)
        ]
        if self.shared == 1:
            return powers.reshape(256, *self.row(self.shifts))
        once = (1,) * (self.sizes.index(self.shared) + 1)
        return powers.reshape(256, *self._units(self.shifts, self.shared), *once)

    def shapes(self, layout: BlockLayout) -> list[Shape] | None:
        """Return the shapes of planes, exponents and shifts; None if blocks or bytes are not full."""
        outer, number, elements, inner = layout.wide(layout.block)
        is_row = form_of(layout) == ROWS
        extent = elements if is_row else inner
        whole = number * elements == layout.cut[1] and elements % layout.group == 0
        if not whole or extent % self.sizes[-1]:
            return None
        lead = (outer, number) if is_row else (outer, number, elements // layout.group, layout.group)
        found = [(*lead, *self.stored(extent, cover)) for cover in self.planes]
        tail = (extent // self.sizes[-1], *self.row(self.sizes[-1]))
        once = (outer, number, *(1 for _ in tail)) if is_row else (outer, number, 1, 1, *tail)
        found.append(once)
        if self.shifts:
            before = lead if is_row else (*lead[:3], 1)
            found.append((*before, *self.stored(extent, self.shifts)))
        return found


def input_shapes(codes: Codes, layout: BlockLayout) -> list[Shape] | None:
    """Return the shapes of planes, exponents and shifts of a weight, or None if it has none."""
    lanes = Lanes.of(codes, layout.group, form_of(layout))
    return lanes.shapes(layout) if lanes else None


def shift_width(codes: Codes) -> int:
    """Return the width of the plane of shifts: theirs, or the next power of two."""
    return next(width for width in (1, 2, 4, 8) if width >= codes.shift_bits)
