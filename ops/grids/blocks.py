"""Choose the shared exponents of weights in block formats.

A block stays on the grid of its exponent while its numbers change. The format later derives the exponent
again from the changed numbers; it is then the same or lower, and its grid the same or finer, with all
numbers of the old one in range. Two cases need care: the lowest number of MXINT8 has the next exponent and
is excluded here; FP8 E4M3 lacks the largest number of its top binade (its code is NaN), so that a lower
exponent cannot represent the numbers just below it. There the largest number of the block must not fall
below its binade.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.array_types import Float64Array
from ops.formats import Attributes, Format
from ops.grids.fixed import Grid
from ops.reference import ELEMENTS, Element, exponents

_EMPTY = -100  # blocks with smaller exponents are zeros, and stay zeros


@dataclass(frozen=True)
class _Layout:
    """How a format shares: ``block`` numbers one exponent, ``group`` of them a shift of at most ``span``.

    Numbers are those of ``element``, scaled so that its largest is below 2, times 2^(exponent - shift).
    """

    block: int
    group: int
    span: int
    element: Element

    @property
    def unit(self) -> int:
        """The exponent of the grid's scale above that of the group."""
        return -(self.element.largest_exponent if self.is_floating else self.element.mantissa_bits)

    @property
    def is_floating(self) -> bool:
        """Whether the numbers of a group have exponents of their own."""
        return self.element.exponent_bits > 0

    @property
    def largest(self) -> float:
        """The largest number in units of the grid's scale."""
        return self.element.largest * (1 if self.is_floating else 2.0**self.element.mantissa_bits)

    @property
    def anchor(self) -> float:
        """The least magnitude of a block's largest number, in units of the scale; 0 if there is none."""
        top = 2.0**self.element.largest_exponent
        return top if self.is_floating and self.largest < (2 - 2.0**-self.element.mantissa_bits) * top else 0


def block_grid(weight: Float64Array, fmt: Format, importance: Float64Array | None) -> Grid:
    """Return the grid of a weight [..., N, S, C] in a block format.

    Exponents are those of the format or, with ``importance`` in the weight's shape, those with the least
    weighted squared error from one below to one above; the format's own wins a tie.
    """
    layout = _layout(fmt.attributes, weight.shape[-1])
    blocks = _cut(weight, layout)  # [..., N, S, blocks, groups of a block, numbers of a group]
    sizes = np.abs(blocks).max(-1, keepdims=True)
    exponent = exponents(sizes.max(-2, keepdims=True))
    shift = np.minimum(exponent - exponents(sizes), layout.span)
    if importance is not None:
        exponent, shift = _choose(blocks, exponent, _cut(importance, layout), layout)
    return _joined(_grid(blocks, exponent, shift, layout), blocks.shape, weight.shape)


def _choose(
    blocks: Float64Array, present: Float64Array, importance: Float64Array, layout: _Layout
) -> tuple[Float64Array, Float64Array]:
    """Return the exponents and shifts with the least weighted squared error."""
    least = np.full(present.shape, np.inf)
    exponent, shift = present.copy(), np.zeros((*blocks.shape[:-1], 1))
    for candidate in (present, present - 1, present + 1):
        errors, shifts = _best_shifts(blocks, candidate, importance, layout)
        better = errors < least
        least = np.where(better, errors, least)
        exponent = np.where(better, candidate, exponent)
        shift = np.where(better, shifts, shift)
    return exponent, shift


def _best_shifts(
    blocks: Float64Array, exponent: Float64Array, importance: Float64Array, layout: _Layout
) -> tuple[Float64Array, Float64Array]:
    """Return the least error of each block, and the shifts of its groups that attain it."""
    errors = []
    for shift in range(layout.span + 1):
        grid = _grid(blocks, exponent, np.full((*blocks.shape[:-1], 1), float(shift)), layout)
        errors.append((importance * (blocks - grid.round(blocks)) ** 2).sum(-1, keepdims=True))
    best = np.argmin(errors, axis=0)
    return np.min(errors, axis=0).sum(-2, keepdims=True), best.astype(np.float64)


def _grid(blocks: Float64Array, exponent: Float64Array, shift: Float64Array, layout: _Layout) -> Grid:
    empty = exponent < _EMPTY
    scale = np.where(empty, 1.0, 2.0 ** (exponent - shift + layout.unit))
    highest = np.where(np.broadcast_to(empty, blocks.shape), 0.0, layout.largest)
    lowest = -highest
    if layout.anchor:
        sizes = np.abs(blocks)
        is_anchor = (sizes == sizes.max(-1, keepdims=True)) & ~empty
        is_anchor &= is_anchor.cumsum(-1) == 1
        lowest = np.where(is_anchor & (blocks > 0), layout.anchor, lowest)
        highest = np.where(is_anchor & (blocks < 0), -layout.anchor, highest)
    return Grid(scale, lowest, highest, layout.element if layout.is_floating else None)


def _layout(attributes: Attributes, channels: int) -> _Layout:
    """Return the layout of a format, with blocks no longer than the channels require."""
    block = attributes["block_size"]
    if "element_dtype" in attributes:
        return _Layout(min(block, channels), min(block, channels), 0, ELEMENTS[attributes["element_dtype"]])
    bits = attributes["bit_width"] - 10  # after the binary point
    element = Element(0, bits, 0, 0, 2 - 2.0**-bits)
    if attributes.get("bfp_method", "to_bfp") == "to_bfp":
        return _Layout(min(block, channels), min(block, channels), 0, element)
    group = attributes["sub_block_size"]
    return _Layout(
        min(block, -(-channels // group) * group), group, 2 ** attributes["sub_block_shift_bits"] - 1, element
    )


def _cut(weight: Float64Array, layout: _Layout) -> Float64Array:
    """Cut the channels into blocks and groups, padded with zeros."""
    padding = [(0, 0)] * (weight.ndim - 1) + [(0, -weight.shape[-1] % layout.block)]
    shape = (*weight.shape[:-1], -1, layout.block // layout.group, layout.group)
    return np.pad(weight, padding).reshape(shape)


def _joined(grid: Grid, cut: tuple[int, ...], shape: tuple[int, ...]) -> Grid:
    scale, lowest, highest = (_join(part, cut, shape) for part in (grid.scale, grid.lowest, grid.highest))
    return Grid(scale, lowest, highest, grid.element)


def _join(part: Float64Array, cut: tuple[int, ...], shape: tuple[int, ...]) -> Float64Array:
    """Undo _cut, and merge positions and channels: [..., N, K]."""
    positions = np.broadcast_to(part, cut).reshape(*shape[:-1], -1)[..., : shape[-1]]
    return positions.reshape(*shape[:-2], -1)
