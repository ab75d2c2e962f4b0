"""Stacks of experts as integers in blocks: rounded, or kept on the grid of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ops import FORMATS
from ops.array_types import AnyArray, Float32Array
from ops.formats import Format
from ops.grids.codes import GridCodes
from ops.grids.recognise import FoundGrid, recognise
from ops.integer_blocks import block_parameters, dequantize_blocks, pack_numbers, quantize_blocks
from transforms.features.experts.mixture import Stack

INTEGERS = {bits: (FORMATS[f"int{bits}"], FORMATS[f"uint{bits}"]) for bits in (8, 4, 2)}
"""By bits: the formats without zero points and with them."""


@dataclass(frozen=True)
class Layout:
    """Bits of an integer, and elements of a block, 0 for a whole row."""

    bits: int
    block: int


@dataclass(frozen=True)
class StoredStack:
    """A stack [E, N, K]: integers [E, N, K * bits / 8], scales and zero points of blocks or rows.

    ``scales`` are [E, N, B] or [E, N]; ``zero_points``, packed along the last axis, are None if all are the
    middle code.
    """

    packed: NDArray[np.uint8]
    scales: Float32Array
    zero_points: NDArray[np.uint8] | None

    @staticmethod
    def of(
        stack: Stack,
        layout: Layout,
        packed: list[NDArray[np.uint8]],
        scales: list[Float32Array],
        zeros: list[NDArray[np.uint8]] | None,
    ) -> StoredStack:
        """Stack the arrays of all experts, whose scales and zero points are [N, B] each."""
        shape = (stack.shape[0], -1, stack.shape[2] // layout.block) if layout.block else (stack.shape[0], -1)
        zero_points = None if zeros is None else pack_numbers(np.stack(zeros).reshape(shape), layout.bits)
        return StoredStack(np.stack(packed), np.stack(scales).reshape(shape), zero_points)


def rounded_stack(stack: Stack, layout: Layout) -> StoredStack:
    """Round a stack with or without zero points, whichever has the smaller squared error."""
    tries = [_rounded(stack, fmt, layout) for fmt in INTEGERS[layout.bits]]
    return min(tries, key=lambda attempt: attempt[1])[0]


def _rounded(stack: Stack, fmt: Format, layout: Layout) -> tuple[StoredStack, float]:
    """Quantize a stack to a format, expert by expert; return it with its squared error."""
    packed, scales, zeros, error = [], [], [], 0.0
    for expert in range(stack.shape[0]):
        matrix = np.asarray(stack.of_expert(expert), np.float32)
        size = layout.block or stack.shape[2]
        parameters = block_parameters(matrix, fmt, 1, size, symmetric=fmt.is_signed, method="MSE")
        integers = quantize_blocks(matrix, parameters, fmt, 1, size)
        decoded = dequantize_blocks(integers, parameters, 1, size)
        error += float(np.square(matrix - decoded, dtype=np.float64).sum())
        packed.append(pack_numbers(_from_lowest(integers, fmt), int(fmt.bits)))
        scales.append(parameters[0])
        zeros.append(_from_lowest(parameters[1], fmt))
    return StoredStack.of(stack, layout, packed, scales, None if fmt.is_signed else zeros), error


def _from_lowest(integers: NDArray[Any], fmt: Format) -> NDArray[np.uint8]:
    """Return unsigned integers, in which the format's lowest number is 0."""
    return (integers.astype(np.int16) - int(fmt.lowest)).astype(np.uint8)


def grids_of(stack: Stack) -> list[FoundGrid] | None:
    """Return the grid of each expert, or None if some expert lies on none with integers and zero points."""
    grids = []
    for expert in range(stack.shape[0]):
        grid = recognise(np.asarray(stack.of_expert(expert), np.float32), along=1)
        if grid is None or not _is_plain(grid) or (grid.block and stack.shape[2] % grid.block):
            return None
        grids.append(grid)
    return grids


def _is_plain(grid: FoundGrid) -> bool:
    kind = grid.kind
    has_integers = not kind.has_minimum and not kind.element and kind.rounding == "float32"
    return grid.share == 1 and has_integers and grid.order is None and grid.axis == (1 if grid.block else 0)


def common_layout(grids: Sequence[FoundGrid]) -> Layout:
    """Return the layout that represents several grids: the most bits, the smallest blocks."""
    blocks = [grid.block for grid in grids if grid.block]
    return Layout(max(grid.kind.bits for grid in grids), min(blocks, default=0))


def found_stack(stack: Stack, grids: Sequence[FoundGrid], layout: Layout) -> StoredStack:
    """Store a stack on the grids of its experts, without any change of its numbers."""
    packed, scales, zeros = [], [], []
    for expert, grid in enumerate(grids):
        codes = GridCodes.of(grid, layout.bits)
        numbers = codes.of_values(np.asarray(stack.of_expert(expert), np.float32))
        packed.append(pack_numbers(numbers, layout.bits))
        blocks = stack.shape[2] // layout.block if layout.block else 1
        scales.append(_repeated(codes.step, blocks))
        zeros.append(_repeated(codes.zero, blocks).astype(np.uint8))
    is_middle = all((zero == 1 << (layout.bits - 1)).all() for zero in zeros)
    return StoredStack.of(stack, layout, packed, scales, None if is_middle else zeros)


def _repeated(parameter: AnyArray, blocks: int) -> AnyArray:
    """Repeat parameters [N] or of larger blocks for each of ``blocks`` blocks, [N, B]."""
    rows = parameter.reshape(len(parameter), -1)
    return np.repeat(rows, blocks // rows.shape[1], 1)


def whole(grids: Sequence[FoundGrid], layout: Layout) -> FoundGrid:
    """Return one grid that describes those of all experts in reports."""
    widest = max(grids, key=lambda grid: grid.bits)
    return replace(widest, block=layout.block)
