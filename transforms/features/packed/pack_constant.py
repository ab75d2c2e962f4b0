"""Encode one weight in the codes of a block format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ops.array_types import Float32Array
from ops.formats import Format
from ops.integer_blocks import pack_numbers
from transforms.features.packed.code_layout import BlockLayout, Bytes, Codes, plane_widths
from transforms.features.packed.codes import codes_of, encode
from transforms.features.packed.lanes import LARGE, form_of, input_shapes, shift_width
from transforms.features.packed.unpackers import call_attributes, group_of, input_names, op_of
from transforms.graph.lazy_values import Computed, Weight, is_weightless, load_values

Arrays = list[NDArray[np.generic]]
_Shapes = list[tuple[int, ...]] | None

MOST_PATCHED = 100
"""At most one number in this many may have no code: otherwise the weight is not of the format."""

_PROBE = 4096  # numbers at the start, which are examined first
_MANTISSA_BELOW = 0x7FFF  # float32 mantissa bits below those of any code


@dataclass(frozen=True)
class PackedConstant:
    """A call of a function from :mod:`transforms.features.packed.unpackers`, and its inputs by name."""

    op: str
    inputs: dict[str, Weight]
    attributes: dict[str, list[int]]
    format: Format

    @property
    def nbytes(self) -> int:
        """The bytes of the inputs."""
        return sum(int(values.nbytes) for values in self.inputs.values())


def may_be_packed(values: NDArray[np.float32]) -> bool:
    """Return whether the first numbers have no more mantissa bits than codes."""
    front = values.reshape(-1)[:_PROBE]
    fine = (front.view(np.uint32) & _MANTISSA_BELOW != 0) & (np.abs(front) >= np.float32(2.0**-126))
    return int(np.count_nonzero(fine & np.isfinite(front))) * MOST_PATCHED <= front.size


def grid_of(values: Float32Array, formats: Sequence[Format], axes: Sequence[int]) -> Format | None:
    """Return the first format that can represent a weight with blocks along one of some axes, or None."""
    tried = product(formats, axes) if may_be_packed(values) else ()
    return next((fmt for fmt, axis in tried if pack_constant(values, fmt, axis, LastEncoded())), None)


class LastEncoded:
    """Cache of the arrays of the last encoded weight, whose inputs are written one after another."""

    def __init__(self) -> None:
        """Start empty."""
        self._key: object = None
        self._arrays: Arrays = []

    def recall(self, key: object, make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays of a key, from the cache if it was the last one."""
        if key is not self._key:
            self._key, self._arrays = None, []  # free the old arrays before making others
            self._key, self._arrays = key, make()
        return self._arrays


def pack_constant(
    source: Weight, fmt: Format, axis: int, last: LastEncoded, *, least_in_lanes: int | None = None
) -> PackedConstant | None:
    """Encode float32 numbers with blocks along an axis; return None if the format cannot represent them.

    Decoding gives the same bits. The inputs of a weight that is not in memory are computed when needed.
    ``least_in_lanes``: elements from which a weight is decoded by few nodes, by default LARGE.
    """
    codes, values = codes_of(fmt), load_values(source)
    if codes is None or values.size < 2:
        return None
    layout = BlockLayout.along(values.shape, axis, fmt.block, group_of(fmt))
    if not _holds_front(values, codes, layout):
        return None
    shapes = _shapes(codes, layout, least_in_lanes)
    arrays = _arrays(values, codes, layout, shapes)
    if arrays is None:
        return None
    names = input_names(fmt, patched=False)
    patched = len(arrays) > len(names)
    names = input_names(fmt, patched=patched)
    inputs: dict[str, Weight] = dict(zip(names, arrays, strict=True))
    if is_weightless(source):
        inputs = _when_needed(inputs, lambda: _arrays(load_values(source), codes, layout, shapes) or [], last)
    form = form_of(layout) if shapes else ""
    return PackedConstant(op_of(fmt, patched=patched, form=form), inputs, call_attributes(fmt, layout), fmt)


def _shapes(codes: Codes, layout: BlockLayout, least: int | None) -> _Shapes:
    """Return the shapes with which few nodes decode a weight of at least ``least`` elements, or None."""
    return input_shapes(codes, layout) if layout.size >= (LARGE if least is None else least) else None


def _when_needed(
    inputs: dict[str, Weight], make: Callable[[], Arrays], last: LastEncoded
) -> dict[str, Weight]:
    """Return inputs that are computed at each use, all together."""
    key = object()

    def part(number: int) -> Callable[[], NDArray[np.generic]]:
        return lambda: last.recall(key, make)[number]

    return {
        name: Computed(values.shape, values.dtype, part(number))
        for number, (name, values) in enumerate(inputs.items())
    }


def _holds_front(values: NDArray[np.float32], codes: Codes, layout: BlockLayout) -> bool:
    """Return whether the first numbers have codes, up to the share allowed."""
    outer, length, inner = layout.cut
    count = max(1, _PROBE // (length * inner))
    if count >= outer:
        return True
    part = BlockLayout((count, length, inner), (count, length, inner), layout.block, layout.group)
    front = values.reshape(layout.cut)[:count]
    return encode(front, codes, part).places.size * MOST_PATCHED <= front.size * 4  # chance, in few numbers


def _arrays(values: NDArray[np.float32], codes: Codes, layout: BlockLayout, shapes: _Shapes) -> Arrays | None:
    """Return the inputs of a call, or None if too many numbers have no code."""
    encoded = encode(values, codes, layout)
    if encoded.places.size * MOST_PATCHED > values.size:
        return None
    outer, number, _, inner = layout.wide(layout.block)
    arrays: Arrays = [*split_planes(encoded.codes, codes.bits)]
    arrays.append(encoded.exponents.reshape(outer, number, 1, inner))
    if codes.shift_bits:
        arrays += split_planes(encoded.shifts.reshape(-1), shift_width(codes))
    if shapes:
        arrays = [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
    if encoded.places.size:
        arrays += [encoded.places.astype(layout.place_type), values.reshape(-1)[encoded.places]]
    return arrays


def split_planes(codes: Bytes, bits: int) -> list[Bytes]:
    """Split flat codes into planes; zeros fill the last byte of each."""
    planes: list[Bytes] = []
    low = 0
    for width in plane_widths(bits):
        planes.append(pack_numbers((codes >> np.uint8(low)) & np.uint8(2**width - 1), width))
        low += width
    return planes
