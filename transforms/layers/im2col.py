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
    """The inputs of an image that each output reads: ``table`` [outputs, taps] over all axes.

    ``is_plain``: every output only reads the number at its place. ``leaves``: some read outside the image.
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
        axes = [
            _axis(op, attrs, axis, *sizes) for axis, sizes in enumerate(zip(kernel, made, read, strict=True))
        ]
        table, size = _combined(axes, read), math.prod(read)
        is_plain = np.array_equal(table, np.arange(size)[:, None])
        return cls(table, size, is_plain, bool((table == NOTHING).any()))

    def take(self, flat: AnyArray, picked: NDArray[np.integer] | slice, outside: float) -> AnyArray:
        """Return the inputs of the picked outputs, from images [C, B * ...], in shape [C, taps, R].

        ``outside`` is the value outside an image. Plain outputs have one tap and no axis for it.
        """
        if self.is_plain:
            return columns(flat, picked)
        outputs = len(self.table)
        image, place = np.divmod(np.arange(flat.shape[1] // max(1, self.read) * outputs)[picked], outputs)
        index = self.table[place].T
        taken = flat.take(index + image * self.read, axis=1)  # NOTHING also indexes some number
        if self.leaves:
            taken[:, index == NOTHING] = outside
        return taken


def columns(flat: AnyArray, picked: NDArray[np.integer] | slice) -> AnyArray:
    """Return the picked columns; for a slice as a view."""
    return flat[:, picked] if isinstance(picked, slice) else flat.take(picked, axis=1)


def _combined(axes: Sequence[Table], sizes: Sequence[int]) -> Table:
    """Return the table over all axes: outputs and taps in C order, inputs counted in C order."""
    combined = np.zeros((1, 1), np.int64)
    for table, size in zip(axes, sizes, strict=True):
        outer, inner = combined[:, None, :, None], table[None, :, None, :]
        both = np.where((outer == NOTHING) | (inner == NOTHING), NOTHING, outer * size + inner)
        combined = both.reshape(combined.shape[0] * table.shape[0], combined.shape[1] * table.shape[1])
    return combined


def _axis(op: str, attrs: Mapping[str, Any], axis: int, kernel: int, out_size: int, in_size: int) -> Table:
    """Return the table of one axis, for a kernel and the output and input sizes along it.

    The table of a transposed convolution is the inverse of that from its output to its input.
    """
    names = ("strides", 1), ("dilations", 1), ("output_padding", 0)
    stride, dilation, extra = ((attrs.get(name) or [plain] * (axis + 1))[axis] for name, plain in names)
    is_transposed, auto_pad = op == "ConvTranspose", attrs.get("auto_pad", "NOTSET")
    few, many = (in_size, out_size) if is_transposed else (out_size, in_size)
    pads = attrs.get("pads")
    begin = int(pads[axis]) if pads and auto_pad == "NOTSET" else 0
    if auto_pad in _SAME or (is_transposed and attrs.get("output_shape")):
        total = max((few - 1) * stride + extra + (kernel - 1) * dilation + 1 - many, 0)
        begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    places = np.arange(few)[:, None] * stride + np.arange(kernel) * dilation - begin
    inside = (places >= 0) & (places < many)
    if not is_transposed:
        return np.where(inside, places, NOTHING)
    table = np.full((out_size, kernel), NOTHING)
    source, tap = inside.nonzero()
    table[places[inside], tap] = source
    return table
