"""Index tables of convolutions, one for each spatial axis: which input meets which weight.

The tables serve both directions: output ``o`` reads, by tap ``t`` of the kernel, the input ``table[o, t]``,
or nothing if that is -1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.array_types import AnyArray

Table = NDArray[np.int64]

NOTHING = -1
_SAME = ("SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class Im2colTables:
    """The inputs that each output reads of an image: ``table`` [outputs, taps] of all axes.

    ``is_plain``: every output reads the one number at its own place. ``leaves``: some read beyond the image.
    """

    table: Table
    read: int
    is_plain: bool
    leaves: bool

    @classmethod
    def of(
        cls,
        op: str,
        attrs: Mapping[str, Any],
        kernel: Sequence[int],
        made: Sequence[int],
        read: Sequence[int],
    ) -> Im2colTables:
        """Return the tables for sizes ``read`` of the input and ``made`` of the output."""
        table, size = combine(tables(op, attrs, kernel, made, read), read), math.prod(read)
        is_plain = np.array_equal(table, np.arange(size)[:, None])
        return cls(table, size, is_plain, bool((table == NOTHING).any()))

    def take(self, flat: AnyArray, picked: NDArray[np.integer] | slice, outside: float) -> AnyArray:
        """Return the inputs of the picked outputs, from images [C, B * ...], of shape [C, taps, R].

        ``outside`` is the value beyond an image. Plain outputs have one tap and no axis for it.
        """
        if self.is_plain:
            return columns(flat, picked)
        outputs = len(self.table)
        image, place = np.divmod(np.arange(flat.shape[1] // max(1, self.read) * outputs)[picked], outputs)
        index = self.table[place].T
        found = flat.take(index + image * self.read, axis=1)  # NOTHING finds a number
        if self.leaves:
            found[:, index == NOTHING] = outside
        return found


def columns(flat: AnyArray, picked: NDArray[np.integer] | slice) -> AnyArray:
    """Return the picked columns; a slice gives a view, not a copy."""
    return flat[:, picked] if isinstance(picked, slice) else flat.take(picked, axis=1)


def tables(
    op: str, attrs: Mapping[str, Any], kernel: Sequence[int], made: Sequence[int], read: Sequence[int]
) -> list[Table]:
    """Return the table of each spatial axis, for sizes ``read`` of the input and ``made`` of the output."""
    rank = len(kernel)
    strides = attrs.get("strides") or [1] * rank
    dilations = attrs.get("dilations") or [1] * rank
    table = _transposed if op == "ConvTranspose" else _plain
    return [
        table(attrs, axis, kernel[axis], strides[axis], dilations[axis], made[axis], read[axis])
        for axis in range(rank)
    ]


def combine(axes: Sequence[Table], sizes: Sequence[int]) -> Table:
    """Return the table of all axes together: outputs and taps in C order, inputs counted in C order."""
    whole = np.zeros((1, 1), np.int64)
    for table, size in zip(axes, sizes, strict=True):
        outer, inner = whole[:, None, :, None], table[None, :, None, :]
        both = np.where((outer == NOTHING) | (inner == NOTHING), NOTHING, outer * size + inner)
        whole = both.reshape(whole.shape[0] * table.shape[0], whole.shape[1] * table.shape[1])
    return whole


def _plain(
    attrs: Mapping[str, Any], axis: int, kernel: int, stride: int, dilation: int, made: int, read: int
) -> Table:
    begin = _explicit(attrs, axis)
    if _auto_pad(attrs) in _SAME:
        begin = _implicit(attrs, (made - 1) * stride + (kernel - 1) * dilation + 1 - read)
    places = np.arange(made)[:, None] * stride + np.arange(kernel) * dilation - begin
    return np.where((places >= 0) & (places < read), places, NOTHING)


def _transposed(
    attrs: Mapping[str, Any], axis: int, kernel: int, stride: int, dilation: int, made: int, read: int
) -> Table:
    begin = _explicit(attrs, axis)
    if _auto_pad(attrs) in _SAME or attrs.get("output_shape"):
        extra = (attrs.get("output_padding") or [0] * (axis + 1))[axis]
        begin = _implicit(attrs, (read - 1) * stride + extra + (kernel - 1) * dilation + 1 - made)
    steps = np.arange(made)[:, None] + begin - np.arange(kernel) * dilation
    places = steps // stride
    return np.where((steps % stride == 0) & (places >= 0) & (places < read), places, NOTHING)


def _auto_pad(attrs: Mapping[str, Any]) -> str:
    return str(attrs.get("auto_pad", "NOTSET"))


def _implicit(attrs: Mapping[str, Any], total: int) -> int:
    """Return how much of a whole padding, if it is above 0, comes first."""
    half = max(total, 0) // 2
    return half if _auto_pad(attrs) == "SAME_UPPER" else max(total, 0) - half


def _explicit(attrs: Mapping[str, Any], axis: int) -> int:
    pads = attrs.get("pads")
    return int(pads[axis]) if pads and _auto_pad(attrs) == "NOTSET" else 0
