"""One weight in the codes of a block format, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops.formats import Format
from transforms.graph.lazy_values import Computed, Weight, derived, is_weightless, load_values
from transforms.packed import bit_planes
from transforms.packed.block_layout import BlockLayout
from transforms.packed.codes import Codes, Encoded, codes_of, decode, encode
from transforms.packed.unpackers import attribute_names, input_names, op_of, shift_width

Arrays = list[NDArray[np.generic]]

MOST_PATCHED = 100
"""One number in so many may have no code: what has fewer codes is not of the format."""

_PROBE = 4096  # numbers at the front that are looked at first
_MANTISSA_BELOW = 0x7FFF  # bits of a float32 below the widest mantissa of any code


@dataclass(frozen=True)
class PackedConstant:
    """A call of a function of :mod:`transforms.packed.unpackers`: its inputs by what they hold, attributes."""

    op: str
    inputs: dict[str, Weight]
    attributes: dict[str, list[int]]
    format: Format

    @property
    def nbytes(self) -> int:
        """The bytes of the inputs."""
        return sum(int(values.nbytes) for values in self.inputs.values())


def may_be_packed(values: NDArray[np.float32]) -> bool:
    """Return whether the first numbers have as few bits as codes have."""
    front = values.reshape(-1)[:_PROBE]
    fine = (front.view(np.uint32) & _MANTISSA_BELOW != 0) & (np.abs(front) >= np.float32(2.0**-126))
    return int(np.count_nonzero(fine & np.isfinite(front))) * MOST_PATCHED <= front.size


def pack_constant(source: Weight, fmt: Format, axis: int) -> PackedConstant | None:
    """Return float32 numbers in codes of a format with blocks along an axis, bit for bit; None without
    codes.

    Of a weight that takes no memory the inputs are computed when needed.
    """
    codes, values = codes_of(fmt), load_values(source)
    if codes is None or values.size < 2:
        return None
    layout = BlockLayout.of(values.shape, axis, fmt)
    if not _holds_front(values, codes, layout):
        return None
    found = encode(values, codes, layout)
    if found.places.size * MOST_PATCHED > values.size:
        return None
    patched = bool(found.places.size)
    names = input_names(fmt, patched=patched)
    arrays: Sequence[Weight] = _arrays(values, found, codes, layout)
    if is_weightless(source):
        arrays = [
            derived(source, _part(number, codes, layout), array.dtype, array.shape)
            for number, array in enumerate(arrays)
        ]
    inputs = dict(zip(names, arrays, strict=True))
    return PackedConstant(op_of(fmt, patched=patched), inputs, _attributes(fmt, layout), fmt)


def unpack_constant(
    fmt: Format,
    inputs: Mapping[str, Weight],
    attributes: Mapping[str, Sequence[int]],
) -> Weight | None:
    """Return the float32 numbers that a call makes, computed when needed; None if sizes do not fit."""
    layout = _layout(fmt, attributes)
    codes = codes_of(fmt)
    if layout is None or codes is None or not _fit(inputs, codes, layout):
        return None

    def compute() -> NDArray[np.float32]:
        return _decoded({name: load_values(values) for name, values in inputs.items()}, codes, layout)

    return Computed(layout.shape, np.float32, compute)


def _holds_front(values: NDArray[np.float32], codes: Codes, layout: BlockLayout) -> bool:
    """Return whether the first fibres have codes, as far as they are few."""
    outer, length, inner = layout.cut
    count = max(1, _PROBE // (length * inner))
    if count >= outer:
        return True
    part = BlockLayout((count, length, inner), (count, length, inner), layout.block, layout.group)
    front = values.reshape(layout.cut)[:count]
    return encode(front, codes, part).places.size * MOST_PATCHED <= front.size * 4  # chance, in few numbers


def _part(number: int, codes: Codes, layout: BlockLayout):  # type: ignore[no-untyped-def]
    def compute(values: NDArray[np.float32]) -> NDArray[np.generic]:
        return _arrays(values, encode(values, codes, layout), codes, layout)[number]

    return compute


def _arrays(values: NDArray[np.float32], found: Encoded, codes: Codes, layout: BlockLayout) -> Arrays:
    outer, number, _, inner = layout.wide(layout.block)
    arrays: Arrays = [*bit_planes.split(found.codes, codes.bits)]
    arrays.append(found.exponents.reshape(outer, number, 1, inner))
    if codes.shift_bits:
        arrays += bit_planes.split(found.shifts.reshape(-1), shift_width(codes))
    if found.places.size:
        arrays += [found.places.astype(_kind_of_places(layout)), values.reshape(-1)[found.places]]
    return arrays


def _attributes(fmt: Format, layout: BlockLayout) -> dict[str, list[int]]:
    known = {
        "shape": layout.shape,
        "cut": layout.cut,
        "blocks": layout.wide(layout.block),
        "groups": layout.wide(layout.group),
    }
    return {name: list(known[name]) for name in attribute_names(fmt)}


def _layout(fmt: Format, attributes: Mapping[str, Sequence[int]]) -> BlockLayout | None:
    """Return the layout that attributes of a call tell of; None if they contradict each other."""
    if set(attributes) != set(attribute_names(fmt)) or len(attributes["cut"]) != 3:
        return None
    shape, cut = tuple(attributes["shape"]), attributes["cut"]
    if min((*shape, *cut), default=0) < 1 or math.prod(shape) != math.prod(cut):
        return None
    group = int(fmt.attributes.get("sub_block_size", 1))
    layout = BlockLayout(shape, (cut[0], cut[1], cut[2]), fmt.block, group)
    return layout if _attributes(fmt, layout) == {k: list(v) for k, v in attributes.items()} else None


def _fit(inputs: Mapping[str, Weight], codes: Codes, layout: BlockLayout) -> bool:
    """Return whether inputs of a call have the sizes and types that its attributes claim."""
    sizes = bit_planes.plane_bytes(layout.size, codes.bits)
    sizes.append(layout.count(layout.block))
    if codes.shift_bits:
        sizes += bit_planes.plane_bytes(layout.count(layout.group), shift_width(codes))
    arrays = list(inputs.values())
    found = [math.prod(array.shape) for array in arrays[: len(sizes)] if array.dtype == np.uint8]
    others = arrays[len(sizes) :]
    return found == sizes and (not others or _is_patch(others[0], others[1], layout))


def _is_patch(places: Weight, others: Weight, layout: BlockLayout) -> bool:
    if (places.dtype, others.dtype) != (_kind_of_places(layout), np.float32) or places.shape != others.shape:
        return False
    inside = load_values(places)
    return len(places.shape) == 1 and bool(((inside >= 0) & (inside < layout.size)).all())


def _kind_of_places(layout: BlockLayout) -> np.dtype[Any]:
    return np.dtype(np.int32 if layout.size < 2**31 else np.int64)


def _decoded(
    arrays: Mapping[str, NDArray[np.generic]], codes: Codes, layout: BlockLayout
) -> NDArray[np.float32]:
    planes = [array.reshape(-1) for name, array in arrays.items() if name.startswith("codes")]
    shifts = np.empty(0, np.uint8)
    if codes.shift_bits:
        shifts = bit_planes.join([arrays["shifts"]], shift_width(codes), layout.count(layout.group))
    numbers = bit_planes.join(planes, codes.bits, layout.size)
    found = Encoded(numbers, arrays["exponents"].reshape(-1), shifts, np.empty(0, np.int64))
    values = decode(found, codes, layout).reshape(-1)
    if "places" in arrays:
        values[arrays["places"]] = arrays["others"]
    return values.reshape(layout.shape)
